"""Servers, gateways, scenes and readers that the tests of several rooms share."""
