"""hrm-doctor: what stands in the way of serving on this machine, and the step that mends it; nothing is changed.

Other rooms add what they need looked at through the entry-point group `hrm_edge.doctor`: a function without arguments
that gives findings (objects with the name, level, text and remedy of a `Finding`).
"""
