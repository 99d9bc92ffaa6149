"""Settings for programs under mocks."""

import os

# An Output that is made a text raises, where the SDK would otherwise only write a warning into the text.
os.environ["PULUMI_ERROR_OUTPUT_STRING"] = "1"
