"""Request records, and the report, table and plot made from them."""
