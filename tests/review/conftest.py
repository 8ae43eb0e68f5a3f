"""Tree drivers, as the tests of trees have them."""

from tests.trees.conftest import any_rig, copy_rig, driver_place, tree_launcher

__all__ = ["any_rig", "copy_rig", "driver_place", "tree_launcher"]
