"""What comes after the work: landing it in the project. See README.md."""
