"""Options that commands of several rooms share."""

from typing import Annotated

import typer

Columns = Annotated[
    str | None,
    typer.Option(
        metavar="QUESTION,ANSWER",
        help="Columns of a CSV file by name or number, such as puzzle,solution or 2,3, and a third "
        "for the rating. Default: found by their names or their content.",
    ),
]
