import schemas

IS_WALGATE = True  # what walgate.py looks for: another distribution may have a package of this name

if not hasattr(schemas, "IS_WALGATE"):
    from walgate import refuse

    refuse(schemas)
