;;; qwen-companion-menu.el --- All commands, by task  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; One table of commands is shown in three ways: `M-x qwen-companion' is a
;; transient menu, the mode has the same menu in the menu bar, and
;; `qwen-companion-command-map' is a prefix keymap that is bound to nothing:
;;
;;     (global-set-key (kbd "C-c q") 'qwen-companion-command-map)
;;
;; This file is loaded when one of them is used first.

;;; Code:

(require 'cl-lib)
(require 'easymenu)
(require 'transient)
(require 'qwen-companion-backend)
(require 'qwen-companion-drafts)
(require 'qwen-companion-environment)
(require 'qwen-companion-layer)
(require 'qwen-companion-options)
(require 'qwen-companion-places)
(require 'qwen-companion-privacy)
(require 'qwen-companion-problems)
(require 'qwen-companion-programs)
(require 'qwen-companion-prompts)
(require 'qwen-companion-proposal)
(require 'qwen-companion-rescue)
(require 'qwen-companion-review)
(require 'qwen-companion-registry)
(require 'qwen-companion-session-list)
(require 'qwen-companion-terminal)

;;; The daemon

;; Its files are not loaded before a daemon is used.

(declare-function qwen-companion-chat-permissions-waiting-chats
                  "qwen-companion-chat-permissions" ())
(declare-function qwen-companion-daemon-description "qwen-companion-daemon" ())
(declare-function qwen-companion-daemon-state "qwen-companion-daemon" ())

(defun qwen-companion-menu--daemon-state ()
  "Return the state of the daemon, as `qwen-companion-daemon-state' does."
  (if (featurep 'qwen-companion-daemon)
      (qwen-companion-daemon-state)
    'off))

(defun qwen-companion-menu--daemon-p ()
  "Return non-nil when a daemon is in use."
  (not (eq 'off (qwen-companion-menu--daemon-state))))

;;; Reasons

;; Reasons, in a few words, why several commands cannot work now.

(defun qwen-companion-menu--not-ready ()
  "Return why no CLI is served."
  (pcase (qwen-companion-state)
    ('ready nil)
    ('off "mode off")
    ('starting "starting")
    (_ "failed")))

(defun qwen-companion-menu--off ()
  "Return why the features of the mode are unavailable."
  (when (eq 'off (qwen-companion-state))
    "mode off"))

(defun qwen-companion-menu--no-file ()
  "Return why the journal has no lines here."
  (or (qwen-companion-menu--off)
      (unless buffer-file-name "no file")))

(defun qwen-companion-menu--no-program ()
  "Return why no CLI can be started."
  (cond ((eq 'error (qwen-companion-state)) "failed")
        ((not (and (car qwen-companion-qwen-command)
                   (qwen-companion-programs-find (car qwen-companion-qwen-command))))
         "no qwen")))

(defun qwen-companion-menu--no-terminal ()
  "Return why there is no CLI to act on here."
  (unless (or qwen-companion-terminal-directory
              (qwen-companion-terminal-recent (qwen-companion-terminal-here)))
    "no CLI"))

(defun qwen-companion-menu--no-terminal-or-program ()
  "Return why a CLI can be neither shown here nor started."
  (and (qwen-companion-menu--no-terminal)
       (qwen-companion-menu--no-program)))

(defun qwen-companion-menu--no-proposal ()
  "Return why there is nothing to review."
  (unless (qwen-companion-proposals)
    "none"))

(defun qwen-companion-menu--no-rescued-text ()
  "Return why there is no rescued text."
  (unless (qwen-companion-rescue-buffers)
    "none"))

(defun qwen-companion-menu--no-connection ()
  "Return why no daemon can be connected to."
  (cond ((memq (qwen-companion-state) '(off error)) (qwen-companion-menu--not-ready))
        ((not (memq (qwen-companion-menu--daemon-state) '(off refused))) "in use")))

(defun qwen-companion-menu--no-url ()
  "Return why there is no daemon to connect to."
  (or (qwen-companion-menu--no-connection)
      (unless qwen-companion-daemon-url "no URL")))

(defun qwen-companion-menu--no-chat ()
  "Return why there can be no chat."
  (unless (memq (qwen-companion-menu--daemon-state) '(starting connecting connected unreachable))
    (or (qwen-companion-menu--no-connection)
        ;; A chat connects to the daemon that it had.
        (and (qwen-companion-menu--no-target)
             (qwen-companion-menu--no-url)))))

(defun qwen-companion-menu--not-connected ()
  "Return why no daemon can be asked for its sessions."
  (unless (eq 'connected (qwen-companion-menu--daemon-state))
    "no daemon"))

(defun qwen-companion-menu--no-target ()
  "Return why there is no chat to send to."
  (unless (cl-some (lambda (buffer)
                     (with-current-buffer buffer
                       (derived-mode-p 'qwen-companion-chat-mode)))
                   (buffer-list))
    "no chat"))

;;; State

(defun qwen-companion-menu--clis ()
  "Return a line on the companion and the connected CLIs."
  (pcase (qwen-companion-state)
    ('off "The mode is off")
    ('starting "Starting")
    ('error (format "Not running: %s" (qwen-companion-backend-failure)))
    (_ (qwen-companion-session-list-summary))))

(defun qwen-companion-menu--daemon ()
  "Return a line on the daemon."
  (cond ((not qwen-companion-daemon-enabled) "Chats: off, see the options")
        ((not (qwen-companion-menu--daemon-p)) "Chats: not connected to a daemon")
        (t (format "Chats: %s" (or (qwen-companion-daemon-description)
                                   (qwen-companion-menu--daemon-state))))))

(defun qwen-companion-menu--exclusions ()
  "Return a line about the files that are hidden from CLIs."
  (let ((hidden 0) (shown 0)
        (patterns (length qwen-companion-excluded-files)))
    (dolist (buffer (buffer-list))
      (pcase (qwen-companion-privacy-exposure buffer)
        ('hide (setq hidden (1+ hidden)))
        ('show (setq shown (1+ shown)))))
    (concat
     "Hidden from CLIs: by rule"
     (and (> patterns 0)
          (format (ngettext ", with %d pattern of yours" ", with %d patterns of yours" patterns)
                  patterns))
     (and (> hidden 0)
          (format (ngettext ", plus %d file" ", plus %d files" hidden) hidden))
     (and (> shown 0)
          (format (ngettext "; %d exception"
                            "; %d exceptions" shown)
                  shown)))))

(defun qwen-companion-menu--activities ()
  "Return the activities of the CLIs, two lines at most, or nil.
With more, the menu would not fit into 24 lines."
  (when-let* ((help (qwen-companion-layer-lines))
              (lines (split-string help "\n")))
    (string-join
     (mapcar (lambda (line)
               (truncate-string-to-width line 79 nil nil t))
             (if (nthcdr 2 lines)
                 (list (car lines) (format "and %d more" (1- (length lines))))
               lines))
     "\n")))

(defun qwen-companion-menu--state ()
  "Return the state of everything, some lines, for the head of the menu."
  (string-join
   (delq nil
         (list (propertize (qwen-companion-menu--clis) 'face 'transient-heading)
               (qwen-companion-menu--activities)
               (qwen-companion-menu--daemon)
               (qwen-companion-menu--exclusions)
               ""))
   "\n"))

;;; Options

(defclass qwen-companion-menu--choice (transient-variable)
  ((set-value :initform nil))
  "An option with few values; its key selects the next one.
The values are from its `:type', a `choice' or a boolean.")

(defun qwen-companion-menu--choices (option)
  "Return the values of OPTION, an alist of value and label."
  (pcase (get option 'custom-type)
    ('boolean '((t . "On") (nil . "Off")))
    (`(choice . ,choices)
     (delq nil
           (mapcar (lambda (choice)
                     (pcase choice
                       (`(const :tag ,tag ,value) (cons value tag))
                       (`(const ,value) (cons value (format "%s" value)))))
                   choices)))))

(cl-defmethod transient-init-value ((object qwen-companion-menu--choice))
  "Read the value of the option of OBJECT."
  (oset object value (default-value (oref object variable))))

(defun qwen-companion-menu--next-value (option)
  "Return the next value of OPTION, and after the last the first."
  (let* ((choices (qwen-companion-menu--choices option))
         (rest (cdr (cl-member (default-value option) choices
                               :key #'car :test #'equal))))
    (car (or (car rest) (car choices)))))

(cl-defmethod transient-infix-read ((object qwen-companion-menu--choice))
  "Return the next value of OBJECT."
  (qwen-companion-menu--next-value (oref object variable)))

(cl-defmethod transient-infix-set ((object qwen-companion-menu--choice) value)
  "Set the option of OBJECT to VALUE in this Emacs."
  (customize-set-variable (oref object variable) value)
  (oset object value value))

(cl-defmethod transient-format-value ((object qwen-companion-menu--choice))
  "Return the present value of OBJECT in words."
  (let ((value (oref object value)))
    (propertize (alist-get value
                           (qwen-companion-menu--choices (oref object variable))
                           (format "%S" value) nil #'equal)
                'face 'transient-value)))

;;; Commands

(eval-and-compile
  (defconst qwen-companion-menu--columns
    '((("CLI"
        ("r" "Start or go" qwen-companion-run (qwen-companion-menu--no-terminal-or-program))
        ("." "Show, hide" qwen-companion-toggle (qwen-companion-menu--no-terminal-or-program))
        ("s" "List" qwen-companion-sessions)
        ("n" "Next waiting" qwen-companion-next-waiting
         (unless (or (qwen-companion-proposals) (qwen-companion-session-list-waiting)) "none"))
        ("w" "Write a prompt" qwen-companion-ask)
        ("W" "Ask at once" qwen-companion-ask-send
         (unless (qwen-companion-ask-possible-p) "no CLI"))
        ("b" "Take back" qwen-companion-ask-take-back
         (unless (qwen-companion-prompts-waiting) "none"))
        ("P" "Last plan" qwen-companion-plan (qwen-companion-menu--not-ready))
        ("=" "Resume" qwen-companion-resume (qwen-companion-menu--not-ready))
        ("i" "Context" qwen-companion-context (qwen-companion-menu--off))
        ("h" "Hide file" qwen-companion-toggle-exclusion
         (unless (buffer-file-name (or (buffer-base-buffer) (current-buffer))) "no file"))
        "--"
        ("&" "Continue" qwen-companion-continue (qwen-companion-menu--no-program))
        ("T" "New worktree" qwen-companion-run-in-worktree (qwen-companion-menu--no-program))
        ("O" "Worktrees" qwen-companion-worktrees (qwen-companion-menu--not-ready))
        ("@" "Serve host" qwen-companion-serve-place (unless (file-remote-p default-directory) "local"))
        ("%" "Retry hosts" qwen-companion-remote-retry (unless (qwen-companion-places) "none"))
        ("X" "Restart" qwen-companion-restart (qwen-companion-menu--no-terminal))
        ("j" "Paste image" qwen-companion-paste-image
         (or (qwen-companion-menu--not-ready) (qwen-companion-menu--no-terminal)))
        ("x" "Send Esc" qwen-companion-terminal-escape
         (unless (and (not qwen-companion-terminal-outside)
                      (process-live-p (get-buffer-process (current-buffer))))
           "no program")))
       ("Kept texts"
        "--"
        ("p" "Apply" qwen-companion-kept-apply (qwen-companion-menu--no-rescued-text))
        ("d" "Compare" qwen-companion-kept-difference (qwen-companion-menu--no-rescued-text))
        ("M" "Bring back" qwen-companion-recover-drafts
         (unless (qwen-companion-drafts-orphaned) "none"))))
      (("Reviews"
        ("v" "Next" qwen-companion-review (qwen-companion-menu--no-proposal))
        ("l" "List" qwen-companion-diffs (qwen-companion-menu--not-ready))
        ("a" "Accept" qwen-companion-diff-accept (qwen-companion-menu--no-proposal))
        ("y" "Accept, next" qwen-companion-diff-accept-next (qwen-companion-menu--no-proposal))
        ("k" "Reject" qwen-companion-diff-reject (qwen-companion-menu--no-proposal))
        ("t" "Ediff or hunks" qwen-companion-diff-switch (qwen-companion-menu--no-proposal))
        ("N" "Comment" qwen-companion-diff-comment
         (unless qwen-companion-proposal-current "no review"))
        ("g" "Changes" qwen-companion-changes (qwen-companion-menu--off))
        "--"
        ("<" "Rewind" qwen-companion-rewind (qwen-companion-menu--off))
        ("f" "Fork" qwen-companion-fork (qwen-companion-menu--off))
        (">" "Recover" qwen-companion-recover (qwen-companion-menu--off))
        ("V" "Previous" qwen-companion-review-previous (qwen-companion-menu--no-proposal))
        ("z" "Blame" qwen-companion-blame (qwen-companion-menu--no-file))
        ("Z" "Blame line" qwen-companion-blame-line (qwen-companion-menu--no-file))
        ("o" "Open" qwen-companion-diff-open (qwen-companion-menu--no-proposal))
        ("e" "Empty the file" qwen-companion-diff-empty (qwen-companion-menu--no-proposal))
        ("u" "Unsaved text" qwen-companion-diff-show-unsaved
         (unless (cl-some #'qwen-companion-proposal-unsaved (qwen-companion-proposals)) "none")))
       ("Daemon"
        "--"
        ("+" "Connect" qwen-companion-daemon-connect (qwen-companion-menu--no-url))
        ("*" "Start" qwen-companion-daemon-start
         (or (qwen-companion-menu--no-connection) (qwen-companion-menu--no-program)))
        ("_" "Disconnect" qwen-companion-daemon-stop
         (unless (qwen-companion-menu--daemon-p) "none"))))
      (("Chat"
        ("c" "Chat" qwen-companion-chat (qwen-companion-menu--no-chat))
        ("C" "List" qwen-companion-chats (qwen-companion-menu--not-connected))
        ("S" "Switch" qwen-companion-chat-switch (qwen-companion-menu--not-connected))
        ("A" "Answer" qwen-companion-chat-answer
         (unless (and (featurep 'qwen-companion-chat-permissions)
                      (qwen-companion-chat-permissions-waiting-chats))
           "none"))
        "--"
        ("E" "Export" qwen-companion-chat-export
         (unless (derived-mode-p 'qwen-companion-chat-mode) "no chat"))
        ("B" "Send text" qwen-companion-chat-send-region
         (cond ((qwen-companion-menu--no-target))
               ((derived-mode-p 'qwen-companion-chat-mode) "a chat")
               ((zerop (buffer-size)) "empty")))
        ("F" "Send file" qwen-companion-chat-send-file (qwen-companion-menu--no-target))
        ("D" "Send problems" qwen-companion-chat-send-problems
         (cond ((qwen-companion-menu--no-target))
               ((not (and (qwen-companion-problems-checked-p) (qwen-companion-problems)))
                "none"))))
       ("Companion"
        ("m" "Mode on or off" qwen-companion-mode)
        ("!" "Doctor" qwen-companion-doctor)
        ("H" "Manual" qwen-companion-manual)
        (":" "More commands" qwen-companion-more)
        (";" "Options" qwen-companion-menu-options)
        "--"
        ("G" "What is on" qwen-companion-welcome)
        ("L" "Log" qwen-companion-log)
        ("J" "Report bug" qwen-companion-report-bug)
        ("I" "Install" qwen-companion-install-backend
         (unless (qwen-companion-environment-base) "no Python"))
        ("U" "Uninstall" qwen-companion-uninstall
         (cond ((bound-and-true-p qwen-companion-mode) "mode on")
               ((null (qwen-companion-environment-directories)) "none"))))))
    "The commands: columns of groups (TITLE COMMAND... \"--\" COMMAND...).
Those after the two hyphens are in the second menu, `qwen-companion-more'.
A COMMAND is (KEY LABEL SYMBOL [REASON]).  REASON is a form whose value
says in a word or two why the command cannot work now, or is nil.  Three
columns, each with labels and reasons, fit into 80 characters.")

  (defconst qwen-companion-menu--options
    '(("-e" "Edits reviewed in auto" qwen-companion-review-edits)
      ("-s" "Reviews begin in" qwen-companion-diff-style)
      ("-o" "Reviews open" qwen-companion-diff-arrival)
      ("-w" "A review is selected" qwen-companion-diff-select)
      ("-m" "Approval mode of new CLIs" qwen-companion-approval-mode)
      ("-l" "Settings layer in terminals" qwen-companion-settings-layer)
      ("-c" "Chats with a daemon" qwen-companion-daemon-enabled))
    "The options that can be set in the menu: (KEY LABEL SYMBOL).")

  (defun qwen-companion-menu--suffix (command)
    "Return COMMAND of the table in the form of transient."
    (pcase-let ((`(,key ,label ,symbol ,reason) command))
      `(,key ,symbol :if (lambda () (fboundp ',symbol))
             :description (lambda () (qwen-companion-menu--label ,label ,reason))
             ,@(and reason `(:inapt-if (lambda () ,reason))))))

  (defun qwen-companion-menu--column (groups more)
    "Return the column of GROUPS in the form of transient.
With MORE non-nil, it has the commands after the two hyphens."
    (let (column)
      (pcase-dolist (`(,title . ,commands) groups)
        (let ((rest (member "--" commands)))
          (when-let* ((shown (if more (cdr rest) (butlast commands (length rest)))))
            (setq column
                  (append column
                          (and column '(""))
                          (list (propertize title 'face 'transient-heading))
                          (mapcar #'qwen-companion-menu--suffix shown))))))
      (vconcat column)))

  (defun qwen-companion-menu--groups (column chats)
    "Return the groups of COLUMN; those of the chat only where CHATS is non-nil."
    (cl-remove-if (lambda (group)
                    (and (not chats) (member (car group) '("Chat" "Daemon"))))
                  column))

  (defun qwen-companion-menu--all-columns (more chats)
    "Return all columns, see `qwen-companion-menu--column' for MORE.
They have the groups of the chat where CHATS is non-nil."
    (mapcar (lambda (column)
              (qwen-companion-menu--column
               (qwen-companion-menu--groups column chats) more))
            qwen-companion-menu--columns))

  (defun qwen-companion-menu--rows (more)
    "Return the rows of a menu, see `qwen-companion-menu--column' for MORE.
One is shown with chats, and another one without."
    (mapcar (lambda (chats)
              `[,@(unless more '(:description qwen-companion-menu--state))
                ,(if chats :if-non-nil :if-nil) qwen-companion-daemon-enabled
                ,@(qwen-companion-menu--all-columns more chats)])
            '(t nil)))

  (defun qwen-companion-menu--infix (option)
    "Return the command that changes OPTION of the table."
    (intern (format "qwen-companion-menu-%s"
                    (string-remove-prefix "qwen-companion-"
                                          (symbol-name (nth 2 option)))))))

(defun qwen-companion-menu--label (label reason)
  "Return LABEL, followed by REASON unless that is nil."
  (if reason
      (format "%s (%s)" label reason)
    label))

(defmacro qwen-companion-menu--define-prefix ()
  "Define the menus, and a command for each option."
  `(progn
     ,@(mapcar (pcase-lambda ((and option `(,key ,label ,symbol)))
                 `(transient-define-infix ,(qwen-companion-menu--infix option) ()
                    ,(format "Set `%s' to its next value." symbol)
                    :class 'qwen-companion-menu--choice
                    :key ,key :description ,(format "%-28s" label)
                    :variable ',symbol))
               qwen-companion-menu--options)
     (transient-define-prefix qwen-companion ()
       "Show the state of the companion and the commands of every day."
       ,@(qwen-companion-menu--rows nil))
     (transient-define-prefix qwen-companion-more ()
       "Show the commands that are not in the menu `qwen-companion'."
       ,@(qwen-companion-menu--rows t))
     (transient-define-prefix qwen-companion-menu-options ()
       "Show the most important options, each with a key to change it."
       [,@(mapcar (lambda (option)
                    (list (qwen-companion-menu--infix option)))
                  qwen-companion-menu--options)])))

;;;###autoload (autoload 'qwen-companion "qwen-companion-menu" nil t)
;;;###autoload (autoload 'qwen-companion-more "qwen-companion-menu" nil t)
;;;###autoload (autoload 'qwen-companion-menu-options "qwen-companion-menu" nil t)
(qwen-companion-menu--define-prefix)

;;;###autoload (autoload 'qwen-companion-command-map "qwen-companion-menu" nil t 'keymap)
(defvar qwen-companion-command-map
  (let ((map (make-sparse-keymap)))
    (define-key map "?" #'qwen-companion)
    (pcase-dolist (`(,_ . ,commands) (apply #'append qwen-companion-menu--columns))
      (pcase-dolist (`(,key ,label ,symbol) (remove "--" commands))
        ;; Which-key shows the label; names of commands are too long for it.
        (define-key map key (cons label symbol))))
    map)
  "Keymap of all commands, with the keys of the menu \\[qwen-companion].
It has no key by default; bind it to one.")
(fset 'qwen-companion-command-map qwen-companion-command-map)

(declare-function Info-find-file "info" (filename &optional noerror no-pop-to-dir))

;;;###autoload
(defun qwen-companion-manual ()
  "Show the manual, in Info if it is installed there, else its source."
  (interactive)
  (require 'info)
  (if (Info-find-file "qwen-companion" t)
      (info "(qwen-companion)")
    ;; A clone has no Info file, nor has package-vc without makeinfo.
    (let ((directory (file-name-directory (locate-library "qwen-companion"))))
      (view-file (or (locate-file "qwen-companion"
                                  (list (expand-file-name "docs" directory) directory)
                                  '(".org" ".texi"))
                     (user-error "The manual is not installed; docs/qwen-companion.org of the package's repository has it")))
      (message "The manual is not installed as Info; showing %s"
               (abbreviate-file-name buffer-file-name)))))

;;;###autoload
(defun qwen-companion-menu-bar (&rest _)
  "Return the menu of the mode for the menu bar, a keymap."
  (easy-menu-create-menu
   "Qwen"
   (append
    (mapcar
     (pcase-lambda (`(,title . ,commands))
       (cons title (mapcar #'qwen-companion-menu--item
                           (if (equal "--" (car commands)) (cdr commands) commands))))
     (qwen-companion-menu--groups (apply #'append qwen-companion-menu--columns)
                                  qwen-companion-daemon-enabled))
    '("--"
      ["Turn chats on" (customize-option 'qwen-companion-daemon-enabled)
       :visible (not qwen-companion-daemon-enabled)]
      ["All of this by keys" qwen-companion]
      ["Manual" qwen-companion-manual]
      ["Options" (customize-group 'qwen-companion)]))))

(defun qwen-companion-menu--item (command)
  "Return COMMAND of the table as an item of the menu bar."
  (pcase command
    (`(,_ ,label ,symbol . ,reason)
     (vector label symbol :visible `(fboundp ',symbol)
             :enable `(not ,(car reason))
             :label `(qwen-companion-menu--label ,label ,(car reason))))
    (separator separator)))

(defun qwen-companion-menu-popup (event)
  "Pop up the menu of the mode at EVENT, a click."
  (interactive "e")
  (popup-menu (qwen-companion-menu-bar) event))

(provide 'qwen-companion-menu)
;;; qwen-companion-menu.el ends here
