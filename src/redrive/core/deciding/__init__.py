"""What follows from each outcome, by what it is about; `core.decide` chooses among them."""
