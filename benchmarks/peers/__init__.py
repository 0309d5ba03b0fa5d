"""The servers under test. Each module starts one kind of server on a free loopback port and ends it again."""
