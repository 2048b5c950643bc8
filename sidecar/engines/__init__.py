"""What engines say of themselves: one table an engine, and the readers that all of them share."""
