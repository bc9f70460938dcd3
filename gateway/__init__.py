import schemas

IS_WALGATE = True  # walgate.py checks it: another distribution may have a package of this name

if not hasattr(schemas, "IS_WALGATE"):
    from walgate import refuse

    refuse(schemas)
