SELECT :now AS now
