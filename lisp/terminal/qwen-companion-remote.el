;;; qwen-companion-remote.el --- Serve the CLIs at other places  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Serves CLIs that run where TRAMP visits files: on another host, as another
;; user, in a container.  The Python process opens a pipe there, by the program
;; that TRAMP uses, and runs a relay at its end.  This file decides which places
;; are served, and starts CLIs there; of TRAMP it uses only the names.

;;; Code:

(require 'cl-lib)
(require 'files-x)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(declare-function tramp-compute-multi-hops "tramp" (vec))
(declare-function tramp-dissect-file-name "tramp" (name &optional nodefault))
(declare-function tramp-file-name-host "tramp" (vec) t)
(declare-function tramp-file-name-host-port "tramp" (vec))
(declare-function tramp-file-name-method "tramp" (vec) t)
(declare-function tramp-file-name-port "tramp" (vec) t)
(declare-function tramp-file-name-user-domain "tramp" (vec))
(defvar tramp-remote-process-environment)

(defcustom qwen-companion-remote-places nil
  "Whether the CLIs at other places are served, by place.
A place is another host, another user or a container.  It is given by the
beginning of TRAMP's names for its files, such as \"/ssh:host:\".
\\[qwen-companion-run] asks about a place that is not in the list.  While
files of a place with `serve' are open, a relay runs there.  Nothing is
installed, and the files that it writes are removed at its end."
  :group 'qwen-companion
  :type '(alist :key-type (string :tag "Place")
                :value-type (choice (const :tag "Serve its CLIs" serve)
                                    (const :tag "Leave them alone" leave))))

(defcustom qwen-companion-remote-keep 3600
  "Seconds that a relay survives the loss of its connection.
CLIs stay connected to it until Emacs reconnects.  A change does not affect
running relays."
  :group 'qwen-companion
  :type 'natnum)

(defvar qwen-companion-remote--sent nil
  "The `places' payload sent last.")

(defvar qwen-companion-remote--directories nil
  "The directories of open remote buffers, (PLACE . PATH), as last seen.")

(defvar qwen-companion-remote--waiting nil
  "CLIs waiting for their commands from the Python process: (NUMBER . PAYLOAD).
PAYLOAD is the payload of the `run-at' call.")

(defvar qwen-companion-remote--timer nil
  "Timer that updates the mode line while a place is lost, or nil.")

(defvar qwen-companion-remote--terminals 0
  "Number of the last remote terminal.")

;;; The places that are served

(defun qwen-companion-remote--hops (place)
  "Return the hops to PLACE for a payload, or nil for an unknown method."
  (require 'tramp)
  (mapcar (lambda (hop)
            ;; TRAMP puts text properties on hops before the last.
            (cl-loop for (key value) on (list :method (tramp-file-name-method hop)
                                              :host (or (tramp-file-name-host hop) "")
                                              :user (tramp-file-name-user-domain hop)
                                              :port (tramp-file-name-port hop))
                     by #'cddr
                     when value append (list key (substring-no-properties (format "%s" value)))))
          (ignore-error user-error
            (tramp-compute-multi-hops (tramp-dissect-file-name place)))))

(defun qwen-companion-remote--control ()
  "Return the name of TRAMP's shared connection of ssh, for a payload, or nil."
  (when (or (bound-and-true-p tramp-use-connection-share)
            (bound-and-true-p tramp-use-ssh-controlmaster-options))
    (expand-file-name "tramp.%C" (default-toplevel-value 'temporary-file-directory))))

(defun qwen-companion-remote--files (place)
  "Return the names at PLACE of the files there that buffers visit."
  (sort (cl-loop for buffer in (buffer-list)
                 for file = (buffer-file-name buffer)
                 when (and file (string-prefix-p (concat place "/") file))
                 collect (substring-no-properties file (length place)))
        #'string<))

(defun qwen-companion-remote--payload ()
  "Return the payload of the `places' call."
  (let ((places (delete-dups
                 (cl-loop for place in (append (mapcar (lambda (cli) (plist-get (cdr cli) :place))
                                                       qwen-companion-remote--waiting)
                                               (mapcar #'car qwen-companion-remote--directories))
                          when (eq 'serve (cdr (assoc place qwen-companion-remote-places)))
                          collect place))))
    (list :places
          (mapcar (lambda (place)
                    (list :name place
                          :hops (qwen-companion-remote--hops place)
                          :control (qwen-companion-remote--control)
                          :keep-s qwen-companion-remote-keep
                          :directories
                          (cl-loop for (at . path) in qwen-companion-remote--directories
                                   when (equal place at) collect path)
                          :files (qwen-companion-remote--files place)
                          :shared
                          (cl-loop for (there . here) in (qwen-companion-places-shared place)
                                   collect (list :there there :here here))))
                  (sort places #'string<)))))

(defun qwen-companion-remote--update (directories)
  "Record DIRECTORIES of open buffers, and send the list of places to serve."
  (mapc #'qwen-companion-remote--hint
        (cl-remove-if-not #'qwen-companion-places-remote-p directories))
  (setq qwen-companion-remote--directories
        (cl-loop for directory in (sort directories #'string<)
                 for (place . path) = (qwen-companion-places-split directory)
                 if place
                 collect (cons place (directory-file-name path))
                 else append
                 (cl-loop for (place) in qwen-companion-remote-shared-directories
                          for path = (qwen-companion-places-shared-path directory place)
                          when path collect (cons place path))))
  (qwen-companion-remote--send))

(defun qwen-companion-remote--hint (directory)
  "Say once how CLIs in terminals of DIRECTORY's unknown place can be served."
  (let ((place (car (qwen-companion-places-split directory))))
    (when (and (not (assoc place qwen-companion-remote-places))
               (cl-some (lambda (buffer)
                          (with-current-buffer buffer
                            (and (equal directory default-directory)
                                 ;; The programs of `term' run on this machine.
                                 (apply #'derived-mode-p 'shell-mode
                                        (cl-set-difference qwen-companion-roots-terminal-modes
                                                           '(comint-mode term-mode))))))
                        (buffer-list)))
      (qwen-companion-backend-notice-once
       (format "M-x qwen-companion-serve-place lets CLIs in terminals at %s find Emacs"
               place)))))

(defun qwen-companion-remote--send ()
  "Send the list of places to serve, if it has changed."
  (when (or qwen-companion-remote--sent qwen-companion-remote-places)
    (let ((payload (qwen-companion-remote--payload)))
      (setq qwen-companion-remote--sent
            (qwen-companion-backend-call-if-changed
             'places payload qwen-companion-remote--sent))
      (let ((names (mapcar (lambda (place) (plist-get place :name)) (plist-get payload :places))))
        (dolist (place names)
          (unless (qwen-companion-places-message place)
            (qwen-companion-places-set place (list :name place :state 'connecting))))
        (dolist (place (qwen-companion-places))
          (unless (member place names)
            (qwen-companion-places-set place nil)
            (qwen-companion-remote--restore-environment place)))))))

(defun qwen-companion-remote-check (place)
  "Ask whether to serve the CLIs at PLACE, unless that is known.
Save the answer for later sessions of Emacs.  Signal a `user-error' if it
is no."
  (let ((known (cdr (assoc place qwen-companion-remote-places))))
    (unless known
      (setq known (if (yes-or-no-p
                       (format "A relay would run at %s while its files are open; it writes a discovery file and settings into ~/.qwen/ide there and removes them at its end.  Serve the CLIs at %s? "
                               place (qwen-companion-places-label place)))
                      'serve 'leave))
      (customize-save-variable 'qwen-companion-remote-places
                               (cons (cons place known) qwen-companion-remote-places)))
    (unless (eq known 'serve)
      (user-error "CLIs at %s are not served; M-x qwen-companion-serve-place in a file there serves them"
                  place))))

;;;###autoload
(defun qwen-companion-serve-place (place leave)
  "Serve the CLIs at PLACE, where the current directory is, from now on.
With a prefix argument LEAVE, do not serve them."
  (interactive (list (or (file-remote-p default-directory)
                         (user-error "%s is on this machine, whose CLIs are served anyway"
                                     default-directory))
                     current-prefix-arg))
  (customize-save-variable
   'qwen-companion-remote-places
   (cons (cons place (if leave 'leave 'serve))
         (assoc-delete-all place (copy-sequence qwen-companion-remote-places))))
  (qwen-companion-remote-retry)
  (message (if leave
               "CLIs at %s are not served"
             "CLIs at %s are served while files of it are open: a relay writes a discovery file and settings into ~/.qwen/ide there and removes them at its end")
           place))

;;;###autoload
(defun qwen-companion-remote-retry ()
  "Connect now to the places that could not be reached."
  (interactive)
  ;; The same list, sent again, has each tried.
  (setq qwen-companion-remote--sent nil)
  (qwen-companion-remote--send))

;;; Running a CLI

(defun qwen-companion-remote-run (directory arguments project)
  "Start the CLI with ARGUMENTS in DIRECTORY, at another place.
If PROJECT is non-nil, the relay finds the root of DIRECTORY's project
first."
  (let ((place (file-remote-p directory))
        (number (cl-incf qwen-companion-remote--terminals)))
    (push (list number
                :terminal number :place place
                :name directory
                :directory (directory-file-name (file-remote-p directory 'localname))
                :project project
                :command (append qwen-companion-qwen-command
                                 (when qwen-companion-approval-mode
                                   (list "--approval-mode" qwen-companion-approval-mode))
                                 arguments))
          qwen-companion-remote--waiting)
    (qwen-companion-remote--send)
    (qwen-companion-remote--send-run (car qwen-companion-remote--waiting))
    (message "Connecting to %s..." place)))

(defun qwen-companion-remote--send-run (cli)
  "Request the command for CLI, an element of `qwen-companion-remote--waiting'."
  (let ((payload (cdr cli)))
    (qwen-companion-backend-call
     'run-at (cl-loop for key in '(:terminal :place :directory :project :command)
                      append (list key (plist-get payload key))))))

(defun qwen-companion-remote-on-run-command (payload)
  "Handle the `run-command' call: start the CLI of PAYLOAD."
  (let* ((number (qwen-companion-run-command-terminal payload))
         (cli (assq number qwen-companion-remote--waiting))
         (error (qwen-companion-run-command-error payload)))
    (when cli
      (setq qwen-companion-remote--waiting (delq cli qwen-companion-remote--waiting))
      (if error
          (qwen-companion-backend-notice
           (format "Qwen Code is not started at %s: %s" (plist-get (cdr cli) :place) error))
        (qwen-companion-terminal-open-at
         (qwen-companion-run-command-directory payload)
         (nthcdr (length qwen-companion-qwen-command) (plist-get (cdr cli) :command))
         (qwen-companion-run-command-command payload)
         number))))
  nil)

;;; The environment of other terminals

;; TRAMP sets the variables in a profile of the place for each program that it
;; starts there.  So a CLI started by hand in a shell has the same environment
;; as one of `qwen-companion-run'.

(defun qwen-companion-remote--profile (place)
  "Return the name of our connection-local profile for PLACE."
  (intern (concat "qwen-companion-" place)))

(defun qwen-companion-remote--criteria (place)
  "Return TRAMP's criteria for a connection to PLACE, which ignore hops."
  (let ((name (tramp-dissect-file-name place)))
    (list :application 'tramp
          :protocol (tramp-file-name-method name)
          :user (tramp-file-name-user-domain name)
          :machine (tramp-file-name-host-port name))))

(defun qwen-companion-remote--set-environment (place variables)
  "Make TRAMP set VARIABLES, a list of (NAME VALUE), for programs at PLACE.
Set none at places that TRAMP cannot distinguish."
  (qwen-companion-remote--restore-environment place)
  (require 'tramp)
  (let* ((profile (qwen-companion-remote--profile place))
         (criteria (qwen-companion-remote--criteria place))
         (same (cl-remove-if-not
                (lambda (other) (equal criteria (qwen-companion-remote--criteria other)))
                (remove place (qwen-companion-places)))))
    (mapc #'qwen-companion-remote--restore-environment same)
    (unless same
      (connection-local-set-profile-variables
       profile
       `((tramp-remote-process-environment
          . ,(append (mapcar (lambda (variable) (string-join variable "=")) variables)
                     (with-temp-buffer
                       (hack-connection-local-variables-apply criteria)
                       tramp-remote-process-environment)))))
      (connection-local-set-profiles criteria profile))))

(defun qwen-companion-remote--restore-environment (place)
  "Remove our variables from the environment of TRAMP at PLACE."
  (let ((profile (qwen-companion-remote--profile place)))
    (setq connection-local-profile-alist (assq-delete-all profile connection-local-profile-alist)
          connection-local-criteria-alist
          (cl-loop for (criteria . profiles) in connection-local-criteria-alist
                   for others = (remq profile profiles)
                   when others collect (cons criteria others)))))

;;; The state of places

(defun qwen-companion-remote--reason (place)
  "Return the reason for the state of PLACE, sanitised."
  (qwen-companion-untrusted-line
   (or (qwen-companion-place-reason (qwen-companion-places-message place)) "")))

(defun qwen-companion-remote-on-place (payload)
  "Handle the `place' call: note the state of the place in PAYLOAD.
Show a message if it cannot be reached, or is reached again."
  (let* ((place (qwen-companion-place-name payload))
         (state (qwen-companion-place-state payload))
         (known (qwen-companion-places-message place))
         (before (qwen-companion-place-state known))
         (variables (qwen-companion-place-environment payload)))
    (qwen-companion-places-set place payload)
    (unless (equal variables (qwen-companion-place-environment known))
      (qwen-companion-remote--set-environment place variables))
    (unless (eq state before)
      (qwen-companion-remote--update-lighter))
    (when (and (memq state '(failed lost)) (not (memq before '(failed lost connecting))))
      (qwen-companion-backend-notice
       (format "the CLIs at %s are not served: %s%s" place (qwen-companion-remote--reason place)
               (if (eq state 'lost) "; trying again" ""))))
    (when (and (eq state 'failed) (eq before 'connecting))
      (qwen-companion-backend-notice-once
       (format "the CLIs at %s are not served: %s" place (qwen-companion-remote--reason place)))))
  nil)

(defun qwen-companion-remote--update-lighter ()
  "Update the mode line, each second while a place is lost."
  (qwen-companion-timers-cancel qwen-companion-remote--timer)
  (force-mode-line-update t)
  (when (cl-some (lambda (place)
                   (qwen-companion-place-retry-at (qwen-companion-places-message place)))
                 (qwen-companion-places))
    (setq qwen-companion-remote--timer
          (run-at-time 1 nil #'qwen-companion-remote--update-lighter))))

(defun qwen-companion-remote-lighter ()
  "Return the text for the mode line about places that are not served, or \"\"."
  (mapconcat
   (lambda (place)
     (let* ((message (qwen-companion-places-message place))
            (state (qwen-companion-place-state message))
            (retry-at (qwen-companion-place-retry-at message))
            (reason (qwen-companion-remote--reason place)))
       (if (eq 'ready state)
           ""
         (propertize (format " %s:%s" (qwen-companion-places-label place)
                             (if retry-at
                                 (format " back in %d s"
                                         (max 1 (ceiling (- (/ retry-at 1000.0) (float-time)))))
                               state))
                     'face 'warning
                     'help-echo (concat (if (string-empty-p reason) place reason)
                                        (and retry-at
                                             "\nM-x qwen-companion-remote-retry tries now"))))))
   (qwen-companion-places) ""))

(defun qwen-companion-remote-enable ()
  "Start serving the places of open buffers."
  (add-hook 'qwen-companion-roots-directories-functions #'qwen-companion-remote--update))

(defun qwen-companion-remote-resend ()
  "Send everything to a new Python process."
  (setq qwen-companion-remote--sent nil)
  (qwen-companion-remote--send)
  (mapc #'qwen-companion-remote--send-run (reverse qwen-companion-remote--waiting)))

(defun qwen-companion-remote-disable ()
  "Stop serving all places."
  (remove-hook 'qwen-companion-roots-directories-functions #'qwen-companion-remote--update)
  (mapc #'qwen-companion-remote--restore-environment (qwen-companion-places))
  (qwen-companion-places-forget)
  (qwen-companion-timers-cancel qwen-companion-remote--timer)
  (setq qwen-companion-remote--sent nil
        qwen-companion-remote--directories nil
        qwen-companion-remote--waiting nil))

(provide 'qwen-companion-remote)
;;; qwen-companion-remote.el ends here
