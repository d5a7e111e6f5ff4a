"""Requests, answers and refusals as data: used by the server, by `hrm-solve` and by `hrm_edge`."""
