package fleet_test

import "io"

const generatorVariable = "OVERLAYD_FLEET_GENERATOR"

func generate(string, io.Reader, io.Writer) error { return nil }
