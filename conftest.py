"""What all tests of the project share."""

import os

from hypothesis import settings

pytest_plugins = ["tests.support.shared", "tests.support.lab", "tests.support.drills", "tests.support.wheel"]

# The servers of tests are on loopback, where a proxy of the site cannot reach them.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

# No test logs in with the agent of whoever runs it.
os.environ.pop("SSH_AUTH_SOCK", None)

# The same examples in every run, and none fails because the machine is busy.
settings.register_profile("busbar", deadline=None, derandomize=True)
settings.load_profile("busbar")
