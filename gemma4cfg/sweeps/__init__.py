"""Many jobs in one table: ``run`` plans them in this process, ``callback`` gathers what Hydra's launchers ran."""
