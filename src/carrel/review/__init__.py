"""What is done with a space's work: it is compared, landed in its project, and taken back."""
