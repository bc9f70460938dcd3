IS_WALGATE = True  # walgate.py checks for this: another distribution may have a package of this name
