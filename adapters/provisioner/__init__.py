"""Our provisioner: starts a pod of the all-in-one image for each sandbox. `app` → `cluster` → `objects`."""
