"""The modules that the programs of scripts/ and the tools of dev/ share."""
