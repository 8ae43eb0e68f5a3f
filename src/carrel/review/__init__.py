"""What is done with a space's work: it is compared with what the space began with."""
