import { defineConfig } from "vite";

export default defineConfig({
  // The broker serves these files from the root of its admin side.
  base: "/",
  build: {
    outDir: "../python/mqcore/_dashboard",
    emptyOutDir: true,
    // The policy of the broker forbids inline scripts and styles.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
});
