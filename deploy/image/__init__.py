"""Builds the container image of the Dockerfile, also where no image can be pulled.

`steps` runs commands and tells how far they are, `podman` keeps everything in a folder of ours,
`base` gets the image to build on, `build` builds. `requirements` and `health_check` go into the
image; they need nothing but Python."""
