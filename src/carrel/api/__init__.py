"""The contract of the API: what can be asked, and the types of questions and answers."""
