"""The built-in scheduling policies. They use only what `openinfer_scheduler` offers any package.

The scheduler's core imports none of them. It loads them by name, through the entry points of this
package, as it loads the policies of other packages.
"""
