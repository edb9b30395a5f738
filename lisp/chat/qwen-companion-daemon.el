;;; qwen-companion-daemon.el --- Connect to qwen serve  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Connects to `qwen serve', which replaces a CLI in a terminal.  It is off
;; until the user turns it on, and until then this file is not loaded.  The
;; Python process talks to the daemon; this file chooses the daemon, looks up
;; its token, starts one, and stores the state of the connection.  Reports of
;; the Python process go to `qwen-companion-daemon-functions'.
;;
;; The Python process looks up the token in the plain files of `auth-sources';
;; Emacs does not see it.  An encrypted file, or another source for Emacs only,
;; is looked up when the user connects, never later, since that may ask for a
;; passphrase.  Such a token is passed on once and erased.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'url-parse)
(require 'qwen-companion-backend)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-options)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)

(declare-function auth-source-search "auth-source" (&rest spec))

(defvar qwen-companion-daemon-functions nil
  "Abnormal hook run with each report of the Python process about the daemon.
Each function is called with the name of the report, a symbol like
`daemon-turn', and its property list.")

(defvar qwen-companion-daemon-disconnected-hook nil
  "Hook run after Emacs has disconnected from the daemon.
No report follows.")

;;; State

(defvar qwen-companion-daemon--request nil
  "The call that gets the daemon: (METHOD . PAYLOAD), or nil.
PAYLOAD is without the token.")
(defvar qwen-companion-daemon--token nil
  "Token of the current daemon until it is sent, then `sent', or nil.
Nil when the Python process finds it, or there is none.")
(defvar qwen-companion-daemon--report nil
  "The latest `daemon-state' report, a property list, or nil.")
(defvar qwen-companion-daemon--described nil
  "Description of the daemon that was last shown in full, or nil.")

(defun qwen-companion-daemon-state ()
  "Return the state of the connection to the daemon, a symbol.
`off' if none is wanted; `starting' or `connecting'; `connected';
`unreachable', which is retried; `refused', which is not."
  (cond ((not qwen-companion-daemon--request) 'off)
        ((qwen-companion-daemon-connection-state qwen-companion-daemon--report))
        (t 'connecting)))

(defun qwen-companion-daemon-description ()
  "Return a description of the connection for the user, a string or nil."
  (pcase (qwen-companion-daemon-connection-state qwen-companion-daemon--report)
    ('nil nil)
    ('connected
     (format "qwen serve at %s, workspace %s: files, commands, MCP servers, skills and credentials are those of %s"
             (qwen-companion-daemon-connection-host qwen-companion-daemon--report)
             (qwen-companion-daemon-connection-workspace qwen-companion-daemon--report)
             (if (qwen-companion-daemon-local-p)
                 "this machine, as the daemon has them"
               "the machine that the daemon is on")))
    (_ (qwen-companion-daemon-connection-text qwen-companion-daemon--report))))

(defun qwen-companion-daemon-progress ()
  "Return the connected daemon's pending work, a string, or nil."
  (and (eq 'connected (qwen-companion-daemon-connection-state qwen-companion-daemon--report))
       (qwen-companion-daemon-connection-text qwen-companion-daemon--report)))

(defun qwen-companion-daemon-workspace ()
  "Return the daemon's workspace, a directory on its host, nil if unknown.
The daemon chooses the name, which may look like a remote one."
  (qwen-companion-daemon-connection-workspace qwen-companion-daemon--report))

(defun qwen-companion-daemon-reconnect-form ()
  "Return the command that gets the current daemon again, (COMMAND ROOT), or nil.
COMMAND is to be called with ROOT."
  (pcase qwen-companion-daemon--request
    (`(,method . ,payload)
     (list (if (eq method 'daemon-start)
               #'qwen-companion-daemon-start
             #'qwen-companion-daemon-connect)
           (plist-get payload :root)))))

(defun qwen-companion-daemon-local-p ()
  "Return non-nil when the daemon is known to run on this machine."
  (qwen-companion-daemon-connection-local qwen-companion-daemon--report))

(defun qwen-companion-daemon-location ()
  "Return a short text about the location of the daemon."
  (let ((host (or (qwen-companion-daemon-connection-host qwen-companion-daemon--report) "qwen serve")))
    (if (qwen-companion-daemon-local-p)
        (format "On this machine (%s)" host)
      (format "At %s: files, tools and keys are those of its machine" host))))

(defun qwen-companion-daemon-workspace-name ()
  "Return the end of the workspace's name, at most 30 columns, or nil."
  (when-let* ((workspace (qwen-companion-daemon-workspace)))
    (let* (;; It may look like a remote name.
           (file-name-handler-alist nil)
           (parts (split-string (if (qwen-companion-daemon-local-p)
                                    (abbreviate-file-name workspace)
                                  workspace)
                                "/")))
      (truncate-string-to-width
       (if (length> parts 4)
           (string-join (cons "..." (last parts 2)) "/")
         (string-join parts "/"))
       30 nil nil t))))

(defun qwen-companion-daemon-lighter ()
  "Return the daemon's part of the mode line, \"\" when there is no daemon."
  (pcase (qwen-companion-daemon-state)
    ('off "")
    ('connected
     (propertize " Daemon" 'help-echo (qwen-companion-daemon-description)))
    (state
     (propertize (format " Daemon:%s" state)
                 'face (when (memq state '(unreachable refused)) 'warning)
                 'help-echo (qwen-companion-daemon-description)))))

;;; Reports

(defun qwen-companion-daemon--on-state (payload)
  "Store the state of the connection in PAYLOAD and show a change of it."
  ;; `off' is about the previous connection.
  (unless (eq 'off (qwen-companion-daemon-connection-state payload))
    (let ((before (qwen-companion-daemon-state)))
      (setq qwen-companion-daemon--report payload)
      (unless (eq before (qwen-companion-daemon-state))
        (when-let* ((text (qwen-companion-daemon--announcement)))
          (qwen-companion-backend-notice text))))
    (force-mode-line-update t)))

(defun qwen-companion-daemon--announcement ()
  "Return the announcement of a change of the connection, a string or nil.
The machines are named once for each daemon, not after each reconnection."
  (let ((description (qwen-companion-daemon-description)))
    (cond ((not (eq 'connected (qwen-companion-daemon-state))) description)
          ((equal description qwen-companion-daemon--described)
           (format "Connected again to qwen serve at %s"
                   (qwen-companion-daemon-connection-host qwen-companion-daemon--report)))
          (t (setq qwen-companion-daemon--described description)))))

(defun qwen-companion-daemon--dispatch (method payload)
  "Pass the report METHOD with PAYLOAD to `qwen-companion-daemon-functions'.
Drop it when the connection has been given up in the meantime."
  (when qwen-companion-daemon--request
    (when (eq method 'daemon-state)
      (qwen-companion-daemon--on-state payload))
    (run-hook-with-args 'qwen-companion-daemon-functions method payload))
  nil)

(defconst qwen-companion-daemon--methods
  (mapcar (lambda (method)
            (cons method (apply-partially #'qwen-companion-daemon--dispatch method)))
          '(daemon-state daemon-sessions daemon-session daemon-choices
            daemon-turn daemon-reset daemon-permission daemon-text
            daemon-commands daemon-usage daemon-reply))
  "Alist (METHOD . FUNCTION) of the reports of the Python process.")

;;; Connecting

(defun qwen-companion-daemon--check ()
  "Signal a `user-error' with the reason when no daemon can be used."
  (unless qwen-companion-daemon-enabled
    (user-error "The use of `qwen serve' is off; customize `qwen-companion-daemon-enabled'"))
  (pcase (qwen-companion-state)
    ('off (user-error "The companion is off; turn on `qwen-companion-mode' first"))
    ('error (user-error "The companion is not running: %s"
                        (qwen-companion-backend-failure))))
  (unless (memq (qwen-companion-daemon-state) '(off refused))
    (user-error "Already using a daemon (%s); M-x qwen-companion-daemon-stop disconnects from it"
                (qwen-companion-daemon-state))))

(defun qwen-companion-daemon--set-request (method payload)
  "Call METHOD of the Python process with PAYLOAD, also after a restart."
  (setq qwen-companion-daemon--request (cons method payload)
        qwen-companion-daemon--report nil)
  (qwen-companion-backend-add-methods qwen-companion-daemon--methods)
  ;; After the settings, which a daemon started here receives.
  (add-hook 'qwen-companion-backend-connected-hook #'qwen-companion-daemon--send-request 90)
  (add-hook 'qwen-companion-state-functions #'qwen-companion-daemon--on-companion-state)
  (qwen-companion-daemon--send-request)
  (force-mode-line-update t))

(defun qwen-companion-daemon--send-request ()
  "Make the call in `qwen-companion-daemon--request' if there is a process."
  (pcase-let ((`(,method . ,payload) qwen-companion-daemon--request))
    (cond
     ((not (qwen-companion-backend-connected-p)))
     ((eq qwen-companion-daemon--token 'sent)
      ;; Looking it up may ask for a passphrase while no user is there.
      (qwen-companion-daemon--dispatch
       'daemon-state
       (list :state 'refused
             :text "The companion's process was replaced; M-x qwen-companion-daemon-connect looks up the token again")))
     (t
      (setq qwen-companion-daemon--report nil)
      (qwen-companion-backend-call
       method (if qwen-companion-daemon--token
                  (append payload (list :token qwen-companion-daemon--token))
                payload))
      (qwen-companion-daemon--wipe-token)))))

(defun qwen-companion-daemon--wipe-token ()
  "Erase the token, if there is one, and remember that it was there."
  (when (stringp qwen-companion-daemon--token)
    (clear-string qwen-companion-daemon--token)
    (setq qwen-companion-daemon--token 'sent)
    (qwen-companion-backend-wipe-conversions)))

(defun qwen-companion-daemon--forget ()
  "Forget the daemon, and remove the hooks and data of its connection."
  (remove-hook 'qwen-companion-state-functions #'qwen-companion-daemon--on-companion-state)
  (remove-hook 'qwen-companion-backend-connected-hook #'qwen-companion-daemon--send-request)
  (qwen-companion-daemon--wipe-token)
  (setq qwen-companion-daemon--request nil
        qwen-companion-daemon--token nil
        qwen-companion-daemon--report nil
        qwen-companion-daemon--described nil)
  (run-hooks 'qwen-companion-daemon-disconnected-hook)
  (force-mode-line-update t))

(defun qwen-companion-daemon--on-companion-state (state)
  "Forget the daemon when the companion has ended in STATE."
  (when (memq state '(off error))
    (qwen-companion-daemon--forget)))

(defun qwen-companion-daemon--plain-file (source)
  "Return the file that SOURCE, an element of `auth-sources', names, or nil.
Return nil if only Emacs can read it, such as an encrypted file."
  (let ((file (if (consp source) (plist-get source :source) source)))
    (and (stringp file)
         (not (string-match-p (rx (or (seq bos (or "secrets:" "macos-keychain"))
                                      (seq "." (or "gpg" "json" "plist") eos)))
                              file))
         (not (file-remote-p file))
         (expand-file-name file))))

(defun qwen-companion-daemon--look-up-token (url)
  "Look up the token for URL in the `auth-sources' that only Emacs can read.
This may ask the user for a passphrase.  Return the names of the other
files, in which the Python process looks first."
  (require 'auth-source)
  (let* ((files (delq nil (mapcar #'qwen-companion-daemon--plain-file auth-sources)))
         (auth-sources (cl-remove-if #'qwen-companion-daemon--plain-file auth-sources))
         ;; It may have changed since.
         (auth-source-do-cache nil)
         (parts (url-generic-parse-url url))
         (found (and auth-sources
                     (car (auth-source-search
                           :host (url-host parts)
                           :port (number-to-string (url-port parts))
                           :user "qwen" :require '(:secret) :max 1))))
         (secret (plist-get found :secret)))
    (setq qwen-companion-daemon--token
          (if (functionp secret) (funcall secret) secret))
    (qwen-companion-backend-wipe-conversions)
    files))

(defun qwen-companion-daemon--default-root ()
  "Return the root of the current project, or the current directory."
  (directory-file-name
   (expand-file-name (or (qwen-companion-roots-of default-directory)
                         default-directory))))

;;;###autoload
(defun qwen-companion-daemon-connect (root)
  "Connect to the `qwen serve' at `qwen-companion-daemon-url'.
ROOT is the workspace that the daemon must have: the root of the current
project, or the current directory without a project.  With a prefix
argument, ask for it.  It is a directory on the daemon's host, as are its
tools, MCP servers, skills and credentials.

Off unless `qwen-companion-daemon-enabled' is non-nil."
  (interactive
   (list (if current-prefix-arg
             (read-string "Workspace, on the daemon's host: "
                          (qwen-companion-daemon--default-root))
           (qwen-companion-daemon--default-root))))
  (qwen-companion-daemon--check)
  (let ((url (or qwen-companion-daemon-url (getenv "QWEN_IDE_DAEMON_URL"))))
    (unless url
      (user-error "No daemon URL is set; customize `qwen-companion-daemon-url', or start a daemon with M-x qwen-companion-daemon-start"))
    (let ((files (qwen-companion-daemon--look-up-token url)))
      (qwen-companion-daemon--set-request
       'daemon-connect (list :url url :root root :sources files)))))

;;;###autoload
(defun qwen-companion-daemon-start (root)
  "Start `qwen serve' on this machine and connect to it.
Its workspace is ROOT: the root of the current project, or the current
directory without a project; with a prefix argument, ask for it.  It
listens on a free port of 127.0.0.1, requires a token made for it, and
ends with Emacs at the latest.  The program is that in
`qwen-companion-qwen-command'.

Off unless `qwen-companion-daemon-enabled' is non-nil."
  (interactive
   (list (if current-prefix-arg
             (read-directory-name "Start qwen serve in: " nil nil t)
           (qwen-companion-daemon--default-root))))
  (qwen-companion-daemon--check)
  (when (file-remote-p root)
    (user-error "The daemon runs on this machine only; %s is remote" root))
  (let* ((root (directory-file-name (expand-file-name root)))
         (command (qwen-companion-terminal-program)))
    (unless (file-directory-p root)
      (user-error "No directory %s" root))
    (setq qwen-companion-daemon--token nil)
    ;; The Python process has the variable PATH, but not `exec-path'.
    (qwen-companion-daemon--set-request 'daemon-start
                                 (list :root root
                                       :program (cons (qwen-companion-programs-find (car command))
                                                      (cdr command))))))

;;;###autoload
(defun qwen-companion-daemon-stop ()
  "Disconnect from the daemon.
A daemon that `qwen-companion-daemon-start' has started ends."
  (interactive)
  (unless qwen-companion-daemon--request
    (user-error "Not connected to a daemon"))
  (qwen-companion-backend-call 'daemon-disconnect nil)
  (qwen-companion-daemon--forget))

(provide 'qwen-companion-daemon)
;;; qwen-companion-daemon.el ends here
