module dragoman/bench/load

go 1.25
