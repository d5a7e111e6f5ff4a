"""City routing."""
