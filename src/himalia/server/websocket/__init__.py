"""``/ws``: one session per connection on its transport."""
