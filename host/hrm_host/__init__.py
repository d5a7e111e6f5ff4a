"""What the rooms above need of the machine: whole files, workers, progress, memory, sensors, the doctor."""
