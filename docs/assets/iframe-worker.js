/* Lets the search of the site run when its pages are opened as files: browsers start no worker from a file. This class
   runs the script of a worker in a hidden frame. Pages that come from a server keep the worker of the browser. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      const load = (address) =>
        new Promise((loaded) => {
          const script = inside.document.createElement("script");
          script.src = address;
          script.onload = loaded;
          inside.document.body.append(script);
        });
      inside.importScripts = (...addresses) => addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = load(url);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data: structuredClone(data) })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
