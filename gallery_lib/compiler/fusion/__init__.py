"""Rewrite modules so that several operators become one."""
