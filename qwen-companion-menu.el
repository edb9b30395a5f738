;;; qwen-companion-menu.el --- All commands, by task  -*- lexical-binding: t; -*-

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

;; One table of commands is shown in three ways: `M-x qwen-companion' is a
;; transient menu, the mode has the same menu in the menu bar, and
;; `qwen-companion-command-map' is a prefix keymap that is bound to nothing:
;;
;;     (global-set-key (kbd "C-c q") 'qwen-companion-command-map)
;;
;; This file is loaded when one of them is used first.

;;; Code:

(require 'easymenu)
(require 'transient)
(require 'qwen-companion-backend)
(require 'qwen-companion-daemon)
(require 'qwen-companion-layer)
(require 'qwen-companion-options)
(require 'qwen-companion-privacy)
(require 'qwen-companion-proposal)
(require 'qwen-companion-rescue)
(require 'qwen-companion-review)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;;; State

(defun qwen-companion-menu--ready-p ()
  "Return non-nil when CLIs are served."
  (eq 'ready (qwen-companion-state)))

(defun qwen-companion-menu--daemon-p ()
  "Return non-nil when a daemon is in use."
  (not (eq 'off (qwen-companion-daemon-state))))

(defun qwen-companion-menu--chat-p ()
  "Return non-nil in a chat buffer."
  (derived-mode-p 'qwen-companion-chat-mode))

(defun qwen-companion-menu--review-p ()
  "Return non-nil in a buffer of a review."
  qwen-companion-proposal-current)

(defun qwen-companion-menu--file-p ()
  "Return non-nil when the current buffer visits a file."
  (buffer-file-name (or (buffer-base-buffer) (current-buffer))))

(defun qwen-companion-menu--count (number singular plural)
  "Return NUMBER in words with SINGULAR or PLURAL, the noun and its verb."
  (format "%d %s" number (if (= number 1) singular plural)))

(defun qwen-companion-menu--clis ()
  "Return a line on the companion and the connected CLIs."
  (pcase (qwen-companion-state)
    ('off "The mode is off")
    ('starting "Starting")
    ('error (format "Not running: %s" (qwen-companion-backend-failure)))
    (_ (let ((sessions (qwen-companion-backend-sessions))
             (proposals (qwen-companion-proposals)))
         (format "%s, %s"
                 (if sessions
                     (qwen-companion-menu--count
                      (length sessions) "CLI is connected" "CLIs are connected")
                   "No CLI is connected")
                 (if proposals
                     (qwen-companion-menu--count
                      (length proposals) "proposal waits" "proposals wait")
                   "no proposal waits"))))))

(defun qwen-companion-menu--daemon ()
  "Return a line on the daemon."
  (cond ((not qwen-companion-daemon-enabled) "Chats: off, see `qwen-companion-daemon-enabled'")
        ((not (qwen-companion-menu--daemon-p)) "Chats: not connected to a daemon")
        (t (format "Chats: %s" (or (qwen-companion-daemon-description)
                                   (qwen-companion-daemon-state))))))

(defun qwen-companion-menu--exclusions ()
  "Return a line about the files that are hidden from CLIs."
  (let ((hidden 0) (shown 0)
        (patterns (length qwen-companion-excluded-files)))
    (dolist (buffer (buffer-list))
      (pcase (qwen-companion-privacy-exposure buffer)
        ('hide (setq hidden (1+ hidden)))
        ('show (setq shown (1+ shown)))))
    (concat
     "Excluded: what the rules name"
     (and (> patterns 0)
          (format ", with %s of yours"
                  (qwen-companion-menu--count patterns "pattern" "patterns")))
     (and (> hidden 0)
          (format ", and %s you hide"
                  (qwen-companion-menu--count hidden "file" "files")))
     (and (> shown 0)
          (format "; %s in spite of them"
                  (qwen-companion-menu--count shown "file is shown" "files are shown"))))))

(defun qwen-companion-menu--state ()
  "Return the state of everything, some lines, for the head of the menu."
  (string-join
   (delq nil
         (list (propertize (qwen-companion-menu--clis) 'face 'transient-heading)
               (qwen-companion-layer-help)
               (qwen-companion-menu--daemon)
               (qwen-companion-menu--exclusions)
               ""))
   "\n"))

;;; Options

(defclass qwen-companion-menu--choice (transient-variable)
  ((set-value :initform nil))
  "An option with few values, which its key takes in turn.
They are those of its `:type', a `choice' or a boolean.")

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
  "Return the value after the present one of OPTION, after the last the first."
  (let* ((choices (qwen-companion-menu--choices option))
         (rest (cdr (cl-member (default-value option) choices
                               :key #'car :test #'equal))))
    (car (or (car rest) (car choices)))))

(cl-defmethod transient-infix-read ((object qwen-companion-menu--choice))
  "Return the value after the present one of OBJECT."
  (qwen-companion-menu--next-value (oref object variable)))

(cl-defmethod transient-infix-set ((object qwen-companion-menu--choice) value)
  "Make VALUE that of the option of OBJECT in this Emacs."
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
  (defconst qwen-companion-menu--groups
    '((("CLI"
        ("r" "Start, or go to it" qwen-companion-run)
        ("." "Show or hide its terminal" qwen-companion-toggle)
        ("=" "Go on with a conversation" qwen-companion-resume
         qwen-companion-menu--ready-p)
        ("&" "Go on with the newest" qwen-companion-continue)
        ("T" "In a worktree" qwen-companion-run-in-worktree)
        ("X" "Start it again" qwen-companion-restart qwen-companion-terminal-buffers)
        ("s" "List" qwen-companion-sessions)
        ("n" "Next that waits for you" qwen-companion-next-waiting)
        ("w" "Write a prompt" qwen-companion-ask)
        ("W" "Ask at once" qwen-companion-ask-send qwen-companion-backend-sessions)
        ("b" "Take back a prompt that waits" qwen-companion-ask-take-back
         qwen-companion-backend-sessions)
        ("j" "Mention the image of the clipboard" qwen-companion-paste-image
         qwen-companion-terminal-buffers)
        ("i" "What CLIs are told" qwen-companion-context)
        ("x" "Send Esc to this terminal" qwen-companion-terminal-escape)
        ("h" "Hide or show this file" qwen-companion-toggle-exclusion
         qwen-companion-menu--file-p))
       ("Reviews"
        ("v" "Next review" qwen-companion-review qwen-companion-proposals)
        ("V" "Previous review" qwen-companion-review-previous qwen-companion-proposals)
        ("l" "List" qwen-companion-diffs qwen-companion-menu--ready-p)
        ("o" "Open" qwen-companion-diff-open qwen-companion-proposals)
        ("a" "Accept" qwen-companion-diff-accept qwen-companion-proposals)
        ("y" "Accept and go to the next" qwen-companion-diff-accept-next
         qwen-companion-proposals)
        ("k" "Reject" qwen-companion-diff-reject qwen-companion-proposals)
        ("N" "Note a comment" qwen-companion-diff-comment
         qwen-companion-menu--review-p)
        ("e" "Empty the file" qwen-companion-diff-empty qwen-companion-proposals)
        ("t" "Ediff or hunks" qwen-companion-diff-switch qwen-companion-proposals)
        ("u" "Your unsaved text" qwen-companion-diff-show-unsaved
         qwen-companion-proposals))
       ("Changes"
        ("g" "What agents changed" qwen-companion-changes qwen-companion-menu--ready-p))
       ("Kept texts"
        ("p" "Apply" qwen-companion-kept-apply qwen-companion-rescue-buffers)
        ("d" "Compare" qwen-companion-kept-difference qwen-companion-rescue-buffers)))
      (("Chat"
        ("c" "Chat" qwen-companion-chat qwen-companion-menu--daemon-p)
        ("C" "List" qwen-companion-chats qwen-companion-menu--daemon-p)
        ("S" "Switch" qwen-companion-chat-switch qwen-companion-menu--daemon-p)
        ("A" "Answer" qwen-companion-chat-answer qwen-companion-menu--daemon-p)
        ("E" "Export" qwen-companion-chat-export qwen-companion-menu--chat-p))
       ("Send to the chat"
        ("R" "Region" qwen-companion-chat-send-region use-region-p)
        ("B" "Buffer" qwen-companion-chat-send-buffer qwen-companion-menu--daemon-p)
        ("F" "File" qwen-companion-chat-send-file qwen-companion-menu--daemon-p)
        ("D" "Diagnostics" qwen-companion-chat-send-diagnostics
         qwen-companion-menu--daemon-p))
       ("Daemon"
        ("+" "Connect" qwen-companion-daemon-connect qwen-companion-menu--ready-p)
        ("*" "Start" qwen-companion-daemon-start qwen-companion-menu--ready-p)
        ("_" "Disconnect" qwen-companion-daemon-stop qwen-companion-menu--daemon-p))
       ("Companion"
        ("m" "Mode on or off" qwen-companion-mode)
        ("L" "Log" qwen-companion-log)
        ("J" "Save the wire log" qwen-companion-save-wire-log)
        ("!" "Doctor" qwen-companion-doctor)
        ("I" "Install the Python part" qwen-companion-install-backend)
        ("U" "Remove the Python part" qwen-companion-uninstall))))
    "The commands: rows of groups (TITLE COMMAND...).
A COMMAND is (KEY LABEL SYMBOL [PREDICATE]); it makes sense now when
PREDICATE, called without arguments, returns non-nil.")

  (defconst qwen-companion-menu--options
    '(("-e" "Edits reviewed in auto" qwen-companion-review-edits)
      ("-s" "Reviews begin in" qwen-companion-diff-style)
      ("-o" "Reviews open" qwen-companion-diff-arrival)
      ("-w" "A review is selected" qwen-companion-diff-select)
      ("-m" "Approval mode of new CLIs" qwen-companion-approval-mode)
      ("-l" "Settings layer in terminals" qwen-companion-settings-layer))
    "The options that can be set in the menu: (KEY LABEL SYMBOL).")

  (defun qwen-companion-menu--suffix (command)
    "Return COMMAND of the table in the form of transient."
    (pcase-let ((`(,key ,label ,symbol ,predicate) command))
      `(,key ,label ,symbol :if (lambda () (fboundp ',symbol))
             ,@(and predicate `(:inapt-if-not ,predicate)))))

  (defun qwen-companion-menu--infix (option)
    "Return the command that changes OPTION of the table."
    (intern (format "qwen-companion-menu-%s"
                    (string-remove-prefix "qwen-companion-"
                                          (symbol-name (nth 2 option)))))))

(defmacro qwen-companion-menu--define-prefix ()
  "Define the command `qwen-companion', and one for each option."
  `(progn
     ,@(mapcar (pcase-lambda ((and option `(,key ,label ,symbol)))
                 `(transient-define-infix ,(qwen-companion-menu--infix option) ()
                    ,(format "Set `%s' to its next value." symbol)
                    :class 'qwen-companion-menu--choice
                    :key ,key :description ,(format "%-28s" label)
                    :variable ',symbol))
               qwen-companion-menu--options)
     (transient-define-prefix qwen-companion ()
       "Show the state of the companion and all its commands, by task."
       [:description qwen-companion-menu--state
        ,@(mapcar (lambda (option)
                    (list (qwen-companion-menu--infix option)))
                  qwen-companion-menu--options)]
       ,@(mapcar (lambda (groups)
                   (vconcat
                    (mapcar (pcase-lambda (`(,title . ,commands))
                              (vconcat
                               (list title)
                               (mapcar #'qwen-companion-menu--suffix commands)))
                            groups)))
                 qwen-companion-menu--groups))))

;;;###autoload (autoload 'qwen-companion "qwen-companion-menu" nil t)
(qwen-companion-menu--define-prefix)

;;;###autoload (autoload 'qwen-companion-command-map "qwen-companion-menu" nil t 'keymap)
(defvar qwen-companion-command-map
  (let ((map (make-sparse-keymap)))
    (define-key map "?" #'qwen-companion)
    (pcase-dolist (`(,_ . ,commands) (apply #'append qwen-companion-menu--groups))
      (pcase-dolist (`(,key ,_ ,symbol) commands)
        (define-key map key symbol)))
    map)
  "Keymap of all commands, with the keys of the menu \\[qwen-companion].
It is bound to nothing; give it a key of your own.")
(fset 'qwen-companion-command-map qwen-companion-command-map)

(declare-function Info-find-file "info" (filename &optional noerror no-pop-to-dir))

(defun qwen-companion-menu--manual ()
  "Show the manual, in Info if it is installed there, else its source."
  (interactive)
  (require 'info)
  (if (Info-find-file "qwen-companion" t)
      (info "(qwen-companion)")
    ;; A clone has no Info, nor has what package-vc installs without makeinfo.
    (view-file (expand-file-name "docs/qwen-companion.org"
                                 (file-name-directory (locate-library "qwen-companion"))))))

;;;###autoload
(defun qwen-companion-menu-bar (&rest _)
  "Return the menu of the mode for the menu bar, a keymap."
  (easy-menu-create-menu
   "Qwen"
   (append
    (mapcar
     (pcase-lambda (`(,title . ,commands))
       (cons title
             (mapcar (pcase-lambda (`(,_ ,label ,symbol ,predicate))
                       (vector label symbol :visible `(fboundp ',symbol)
                               :enable (if predicate (list predicate) t)))
                     commands)))
     (apply #'append qwen-companion-menu--groups))
    '("--"
      ["All of this by keys" qwen-companion]
      ["Manual" qwen-companion-menu--manual]
      ["Options" (customize-group 'qwen-companion)]))))

(defun qwen-companion-menu-popup (event)
  "Pop up the menu of the mode at EVENT, a click."
  (interactive "e")
  (popup-menu (qwen-companion-menu-bar) event))

(provide 'qwen-companion-menu)
;;; qwen-companion-menu.el ends here
