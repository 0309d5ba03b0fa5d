"""The client's methods that call REST, one class per subject; ``Client`` inherits them."""
