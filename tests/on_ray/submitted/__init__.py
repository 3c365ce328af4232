"""Jobs on a cluster of their own; a package, so that its head node lasts for the tests of this folder and no longer."""
