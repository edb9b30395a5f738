;;; qwen-companion-daemon.el --- The connection to a qwen serve  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A `qwen serve' in place of a CLI in a terminal: off until the user turns
;; it on, and until then this file is not even loaded.  What is here is the
;; way to it: which daemon, its token, starting one, the state of the
;; connection.  The Python process speaks with the daemon; what it reports
;; goes to the functions on `qwen-companion-daemon-functions'.
;;
;; The token is looked up when the user connects, never later: that may ask
;; for a passphrase.  It is kept in a variable for as long as the connection
;; is wanted, so that a Python process that was replaced gets it again.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'url-parse)
(require 'qwen-companion-backend)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)

(declare-function auth-source-search "auth-source" (&rest spec))

;;;###autoload
(defcustom qwen-companion-daemon-enabled nil
  "Whether a `qwen serve' may be used.
With nil, nothing of that is loaded, started or connected to."
  :group 'qwen-companion
  :risky t
  :type 'boolean)

;;;###autoload
(defcustom qwen-companion-daemon-url nil
  "URL of the `qwen serve' that `qwen-companion-daemon-connect' connects to.
With nil, the environment variable QWEN_IDE_DAEMON_URL names it.  Plain
HTTP is for this machine only, like \"http://127.0.0.1:4170\"; a daemon
elsewhere needs https, or a tunnel to this machine.

Its token does not belong here.  It is taken from `auth-sources': host
and port of the URL, and the user \"qwen\"; else from the environment
variable QWEN_SERVER_TOKEN, or from the file that QWEN_SERVER_TOKEN_FILE
names, which nobody but you may be able to read."
  :group 'qwen-companion
  :risky t
  :type '(choice (const :tag "From the environment" nil)
                 (string :tag "URL")))

(defvar qwen-companion-daemon-functions nil
  "Abnormal hook run with what the Python process reports of the daemon.
Each function gets the name of the report, a symbol like `daemon-turn',
and its property list.")

(defvar qwen-companion-daemon-left-hook nil
  "Hook run when the daemon was left: nothing more will be reported of it.")

;;; State

(defvar qwen-companion-daemon--wanted nil
  "What the Python process was asked for: (METHOD . PAYLOAD), or nil.
The payload is without the token.")
(defvar qwen-companion-daemon--token nil
  "The token of the daemon connected to, nil when there is none.")
(defvar qwen-companion-daemon--report nil
  "The state of the connection as the Python process told it last.")

(defun qwen-companion-daemon-state ()
  "Return the state of the connection to the daemon, a symbol.
`off' when none is wanted; `starting' or `connecting'; `connected';
`unreachable', which is tried again; `refused', which is not."
  (cond ((not qwen-companion-daemon--wanted) 'off)
        ((qwen-companion-daemon-connection-state qwen-companion-daemon--report))
        (t 'connecting)))

(defun qwen-companion-daemon-description ()
  "Return what the user should know of the connection, a string or nil."
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

(defun qwen-companion-daemon-workspace ()
  "Return the daemon's workspace, a directory of its host, nil when unknown.
That is the daemon's word for it, which may look like a remote name."
  (qwen-companion-daemon-connection-workspace qwen-companion-daemon--report))

(defun qwen-companion-daemon-way ()
  "Return how the daemon came to be used, (COMMAND ROOT), nil when there is none.
COMMAND called with ROOT has it again."
  (pcase qwen-companion-daemon--wanted
    (`(,method . ,payload)
     (list (if (eq method 'daemon-start)
               #'qwen-companion-daemon-start
             #'qwen-companion-daemon-connect)
           (plist-get payload :root)))))

(defun qwen-companion-daemon-local-p ()
  "Return non-nil when the daemon is known to be on this machine.
Its files are those of this machine then."
  (qwen-companion-daemon-connection-local qwen-companion-daemon--report))

(defun qwen-companion-daemon-place ()
  "Return in a few words where the daemon is, and that all it has is there."
  (let ((host (or (qwen-companion-daemon-connection-host qwen-companion-daemon--report) "qwen serve")))
    (if (qwen-companion-daemon-local-p)
        (format "On this machine (%s)" host)
      (format "At %s: files, tools and keys are those of its machine" host))))

(defun qwen-companion-daemon-workspace-name ()
  "Return the end of the daemon's workspace, of 30 columns at most, or nil."
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
  "Return the part of the mode line about the daemon, \"\" when there is none."
  (pcase (qwen-companion-daemon-state)
    ('off "")
    ('connected
     (propertize " Daemon" 'help-echo (qwen-companion-daemon-description)))
    (state
     (propertize (format " Daemon:%s" state)
                 'face (when (memq state '(unreachable refused)) 'warning)
                 'help-echo (qwen-companion-daemon-description)))))

;;; What the Python process reports

(defun qwen-companion-daemon--on-state (payload)
  "Use the state of the connection in PAYLOAD."
  ;; `off' is about the connection before this one, which was left.
  (unless (eq 'off (qwen-companion-daemon-connection-state payload))
    (let ((before (qwen-companion-daemon-state)))
      (setq qwen-companion-daemon--report payload)
      (unless (eq before (qwen-companion-daemon-state))
        (when-let* ((text (qwen-companion-daemon-description)))
          (qwen-companion-backend-notice text))))
    (force-mode-line-update t)))

(defun qwen-companion-daemon--take (method payload)
  "Hand on that the Python process called METHOD with PAYLOAD.
What comes after the connection was given up is late and dropped."
  (when qwen-companion-daemon--wanted
    (when (eq method 'daemon-state)
      (qwen-companion-daemon--on-state payload))
    (run-hook-with-args 'qwen-companion-daemon-functions method payload))
  nil)

(defconst qwen-companion-daemon--methods
  (mapcar (lambda (method)
            (cons method (apply-partially #'qwen-companion-daemon--take method)))
          '(daemon-state daemon-sessions daemon-session daemon-choices
            daemon-turn daemon-reset daemon-permission daemon-text
            daemon-commands daemon-usage daemon-reply))
  "What the Python process may call.")

;;; Connecting

(defun qwen-companion-daemon--check ()
  "Refuse, with the reason, while no daemon can be used."
  (unless qwen-companion-daemon-enabled
    (user-error "The use of `qwen serve' is off; customize `qwen-companion-daemon-enabled'"))
  (pcase (qwen-companion-state)
    ('off (user-error "The companion is off; turn on `qwen-companion-mode' first"))
    ('error (user-error "The companion is not running: %s"
                        (qwen-companion-backend-failure))))
  (unless (memq (qwen-companion-daemon-state) '(off refused))
    (user-error "Already using a daemon (%s); M-x qwen-companion-daemon-stop disconnects from it"
                (qwen-companion-daemon-state))))

(defun qwen-companion-daemon--want (method payload)
  "Ask the Python process for METHOD with PAYLOAD, now and after a restart."
  (setq qwen-companion-daemon--wanted (cons method payload)
        qwen-companion-daemon--report nil)
  (qwen-companion-backend-add-methods qwen-companion-daemon--methods)
  (add-hook 'qwen-companion-backend-connected-hook #'qwen-companion-daemon--ask)
  (add-hook 'qwen-companion-state-functions #'qwen-companion-daemon--companion-changed)
  (qwen-companion-daemon--ask)
  (force-mode-line-update t))

(defun qwen-companion-daemon--ask ()
  "Ask the Python process for the daemon, if there is a process yet."
  (pcase-let ((`(,method . ,payload) qwen-companion-daemon--wanted))
    (when (qwen-companion-backend-connected-p)
      (setq qwen-companion-daemon--report nil)
      (qwen-companion-backend-call
       method (if qwen-companion-daemon--token
                  (append payload (list :token qwen-companion-daemon--token))
                payload)))))

(defun qwen-companion-daemon--forget ()
  "Forget the daemon and leave nothing of it behind."
  (remove-hook 'qwen-companion-state-functions #'qwen-companion-daemon--companion-changed)
  (remove-hook 'qwen-companion-backend-connected-hook #'qwen-companion-daemon--ask)
  (setq qwen-companion-daemon--wanted nil
        qwen-companion-daemon--token nil
        qwen-companion-daemon--report nil)
  (run-hooks 'qwen-companion-daemon-left-hook)
  (force-mode-line-update t))

(defun qwen-companion-daemon--companion-changed (state)
  "Forget the daemon when the companion has ended; STATE is its new one."
  (when (memq state '(off error))
    (qwen-companion-daemon--forget)))

(defun qwen-companion-daemon--look-up-token (url)
  "Set the token to that which `auth-sources' have for URL, else to nil.
This may ask the user for a passphrase."
  (require 'auth-source)
  (let* ((parts (url-generic-parse-url url))
         (found (car (auth-source-search
                      :host (url-host parts)
                      :port (number-to-string (url-port parts))
                      :user "qwen" :require '(:secret) :max 1)))
         (secret (plist-get found :secret)))
    (setq qwen-companion-daemon--token
          (if (functionp secret) (funcall secret) secret))
    (qwen-companion-backend-wipe-conversions)))

(defun qwen-companion-daemon--root ()
  "Return the root of the current project, else the current directory."
  (directory-file-name
   (expand-file-name (or (qwen-companion-roots-of default-directory)
                         default-directory))))

;;;###autoload
(defun qwen-companion-daemon-connect (root)
  "Connect to the `qwen serve' at `qwen-companion-daemon-url'.
ROOT is the workspace that the daemon must have: the root of the current
project, or the current directory where there is no project.  With a
prefix argument, ask for it; it is a directory on the daemon's host,
where also its tools, MCP servers, skills and credentials are.

Off unless `qwen-companion-daemon-enabled' is non-nil."
  (interactive
   (list (if current-prefix-arg
             (read-string "Workspace, on the daemon's host: "
                          (qwen-companion-daemon--root))
           (qwen-companion-daemon--root))))
  (qwen-companion-daemon--check)
  (let ((url (or qwen-companion-daemon-url (getenv "QWEN_IDE_DAEMON_URL"))))
    (unless url
      (user-error "No daemon URL is set; customize `qwen-companion-daemon-url', or start a daemon with M-x qwen-companion-daemon-start"))
    (qwen-companion-daemon--look-up-token url)
    (qwen-companion-daemon--want 'daemon-connect (list :url url :root root))))

;;;###autoload
(defun qwen-companion-daemon-start (root)
  "Start a `qwen serve' on this machine and connect to it.
Its workspace is ROOT: the root of the current project, or the current
directory where there is no project; with a prefix argument, ask for it.
It listens on a free port of 127.0.0.1, wants a token that is made for
it, and ends with Emacs at the latest.  The program is the one in
`qwen-companion-qwen-command'.

Off unless `qwen-companion-daemon-enabled' is non-nil."
  (interactive
   (list (if current-prefix-arg
             (read-directory-name "Start qwen serve in: " nil nil t)
           (qwen-companion-daemon--root))))
  (qwen-companion-daemon--check)
  (when (file-remote-p root)
    (user-error "The daemon runs on this machine only; %s is remote" root))
  (let* ((root (directory-file-name (expand-file-name root)))
         (command (qwen-companion-terminal-program)))
    (unless (file-directory-p root)
      (user-error "No directory %s" root))
    (setq qwen-companion-daemon--token nil)
    ;; The Python process knows the variable PATH, not `exec-path'.
    (qwen-companion-daemon--want 'daemon-start
                                 (list :root root
                                       :program (cons (executable-find (car command))
                                                      (cdr command))))))

;;;###autoload
(defun qwen-companion-daemon-stop ()
  "Leave the daemon; one that `qwen-companion-daemon-start' started ends."
  (interactive)
  (unless qwen-companion-daemon--wanted
    (user-error "Not connected to a daemon"))
  (qwen-companion-backend-call 'daemon-disconnect nil)
  (qwen-companion-daemon--forget))

(provide 'qwen-companion-daemon)
;;; qwen-companion-daemon.el ends here
