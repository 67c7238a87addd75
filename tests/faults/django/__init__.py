import tests.contrib.django  # noqa: F401 - the settings of the site
