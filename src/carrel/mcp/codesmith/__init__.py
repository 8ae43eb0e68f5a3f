"""`carrel codesmith`: one tool that has something made. It does without the SDK, which alone would
take more memory than this may."""
