"""What all tests of the project share."""

pytest_plugins = ["tests.support.shared"]
