"""What bodies hold and answers look like: the source of the OpenAPI document."""
