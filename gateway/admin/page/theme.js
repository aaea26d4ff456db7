/** The colour scheme: dark, light, or that of the system. */

const THEME = "typegate-theme";

/** Apply the given or the stored scheme, and return it; an empty string means that of the system. */
export function theme(chosen) {
  if (chosen !== undefined) {
    if (chosen) localStorage.setItem(THEME, chosen);
    else localStorage.removeItem(THEME);
  }
  const current = localStorage.getItem(THEME) ?? "";
  if (current) document.documentElement.dataset.theme = current;
  else delete document.documentElement.dataset.theme;
  return current;
}
