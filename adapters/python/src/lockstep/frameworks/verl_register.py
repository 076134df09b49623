"""Imported by verl through ``actor_rollout_ref.model.external_lib``: makes ``loss_mode=lockstep_dlc`` known."""

from .verl import register

register()
