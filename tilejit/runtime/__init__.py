"""From a Python call to a launch: specialisation, compilation, the disk cache, the driver."""
