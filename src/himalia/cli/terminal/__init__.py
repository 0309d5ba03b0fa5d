"""What commands print and ask."""
