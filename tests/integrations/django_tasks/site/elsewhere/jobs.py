from parity.compat import task


@task
def listed():
    return "from a module that is no app"
