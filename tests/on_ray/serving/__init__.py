"""The application over HTTP; a package, so that its server lasts for the tests of this folder and no longer."""
