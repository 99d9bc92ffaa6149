"""From a running cluster to a document that another person can judge again.

Data flow one way: site and criteria -> stages, which write evidence -> rows, pure functions of the evidence
-> document -> signatures. Verification begins at the evidence again. The core does not import this package.
"""
