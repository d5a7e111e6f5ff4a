"""What every floor of the runtime agrees on: the bundle on disk, the halting rule, arrays and log lines."""
