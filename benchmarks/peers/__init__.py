"""The servers under test. Each module starts and stops one kind of server on a free loopback port."""
