"""What boards made of cells share."""
