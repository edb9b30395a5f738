;;; qwen-companion-chat-choices.el --- The model and the approval mode of a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Shows the model and the approval mode of a chat in its mode line, and
;; changes them by commands.  The choices, their names and descriptions come
;; from the daemon.
;;
;; Both apply to all clients of the session.  A change of the model outlives
;; the session: after confirmation, the daemon writes it into settings on its
;; host.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-completion)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-chat-choices--kinds
  '((model :title "Model" :category qwen-companion-model
           :all qwen-companion-daemon-choices-models
           :in-use qwen-companion-daemon-session-model
           :match-by qwen-companion-daemon-choice-name
           :method daemon-model :key :model)
    (mode :title "Approval mode" :category qwen-companion-approval-mode
          :all qwen-companion-daemon-choices-modes
          :in-use qwen-companion-daemon-session-mode
          :match-by qwen-companion-daemon-choice-id
          :method daemon-mode :key :mode))
  "Alist (KIND . PLIST) of the settings of a chat with a list of choices.
In PLIST, :title is the name in messages and :category the completion
category.  The function :all returns the choices offered by the daemon,
:in-use returns the current one of a session, and :match-by returns the
value of a choice to compare with that.  The method :method sets :key.")

(defvar-local qwen-companion-chat-choices--offered nil
  "The latest `daemon-choices' report: the models and modes to choose from.")

(defun qwen-companion-chat-choices-on-choices (payload)
  "Store the models and modes in the report PAYLOAD."
  (setq qwen-companion-chat-choices--offered payload)
  (run-hooks 'qwen-companion-chat-session-hook))

(defun qwen-companion-chat-choices--fact (kind key)
  "Return the value of KEY for KIND in `qwen-companion-chat-choices--kinds'."
  (plist-get (alist-get kind qwen-companion-chat-choices--kinds) key))

(defun qwen-companion-chat-choices--all (kind)
  "Return all choices of KIND."
  (funcall (qwen-companion-chat-choices--fact kind :all)
           qwen-companion-chat-choices--offered))

;;; Current choices

(defun qwen-companion-chat-choices--current (kind)
  "Return the choice of KIND that is in use, nil when it is unknown."
  (let* ((value (funcall (qwen-companion-chat-choices--fact kind :in-use)
                         qwen-companion-chat-session))
         (found (cl-remove value (qwen-companion-chat-choices--all kind)
                           :key (qwen-companion-chat-choices--fact kind :match-by)
                           :test-not #'equal)))
    ;; Two models may have the same name.
    (and (not (cdr found)) (car found))))

(defun qwen-companion-chat-choices--name (choice)
  "Return the name of CHOICE on one line."
  (qwen-companion-untrusted-line (qwen-companion-daemon-choice-name choice)))

(defun qwen-companion-chat-choices--current-name (kind)
  "Return the name of the choice of KIND in use, nil when it is unknown."
  (if-let* ((choice (qwen-companion-chat-choices--current kind)))
      (qwen-companion-chat-choices--name choice)
    (when-let* ((told (funcall (qwen-companion-chat-choices--fact kind :in-use)
                               qwen-companion-chat-session)))
      (qwen-companion-untrusted-line told))))

(defun qwen-companion-chat-choices--description (choice)
  "Return the description of CHOICE on one line, or nil."
  (when-let* ((description (qwen-companion-daemon-choice-description choice)))
    (truncate-string-to-width (qwen-companion-untrusted-line description)
                              120 nil nil t)))

(defun qwen-companion-chat-choices--in-words (choice)
  "Return the name of CHOICE followed by its description."
  (string-join (delq nil (list (qwen-companion-chat-choices--name choice)
                               (qwen-companion-chat-choices--description choice)))
               ": "))

;;; In the mode line

(defconst qwen-companion-chat-choices--columns 24
  "Width of a name in the mode line, in columns.")

(defun qwen-companion-chat-choices--mouse-map (command)
  "Return a keymap for COMMAND on a click in the mode line.
Select the window of that mode line first."
  (make-mode-line-mouse-map
   'mouse-1 (lambda (event)
              (interactive "e")
              (select-window (posn-window (event-start event)))
              (call-interactively command))))

(defconst qwen-companion-chat-choices--mouse-maps
  (list (cons 'model (qwen-companion-chat-choices--mouse-map #'qwen-companion-chat-set-model))
        (cons 'mode (qwen-companion-chat-choices--mouse-map #'qwen-companion-chat-set-mode)))
  "Alist (KIND . KEYMAP) of the keymaps in the mode line.")

(defun qwen-companion-chat-choices-lighter (kind)
  "Return the part of the mode line about KIND, `model' or `mode'.
Return nil while it is unknown."
  (when-let* ((name (qwen-companion-chat-choices--current-name kind)))
    (let ((current (qwen-companion-chat-choices--current kind)))
      (propertize
       (truncate-string-to-width name qwen-companion-chat-choices--columns nil nil t)
       'mouse-face 'mode-line-highlight
       'local-map (alist-get kind qwen-companion-chat-choices--mouse-maps)
       'help-echo (format "%s %s\nmouse-1: choose another"
                          (qwen-companion-chat-choices--fact kind :title)
                          ;; Emacs substitutes command keys in `help-echo'.
                          (string-replace
                           "\\" "\\=\\"
                           (if current
                               (qwen-companion-chat-choices--in-words current)
                             name)))))))

;;; Choosing

(defun qwen-companion-chat-choices--check ()
  "Signal a `user-error' with the reason if no choice is possible."
  (unless (derived-mode-p 'qwen-companion-chat-mode)
    (user-error "Not in a chat buffer"))
  (unless qwen-companion-chat-session-id
    (user-error "No session yet"))
  (when-let* ((trouble (qwen-companion-chat-trouble)))
    (user-error "%s" trouble))
  (unless (qwen-companion-daemon-session-state qwen-companion-chat-session)
    (user-error "The session is not open yet")))

(defun qwen-companion-chat-choices--annotation (choice current)
  "Return the annotation of CHOICE for completion, or nil.
CURRENT is the choice in use."
  (let ((said (delq nil (list (and (eq choice current) "(in use)")
                              (qwen-companion-chat-choices--description choice)))))
    (and said (string-join said " "))))

(defun qwen-companion-chat-choices--read (kind)
  "Read a choice of KIND, `model' or `mode', other than the one in use."
  (qwen-companion-chat-choices--check)
  (let* ((title (qwen-companion-chat-choices--fact kind :title))
         (current (qwen-companion-chat-choices--current kind))
         (choices (qwen-companion-completion-distinct
                   (mapcar (lambda (choice)
                             (cons (qwen-companion-chat-choices--name choice) choice))
                           (or (qwen-companion-chat-choices--all kind)
                               (user-error "No %s available yet; the session is %s"
                                           (downcase title)
                                           (qwen-companion-daemon-session-state
                                            qwen-companion-chat-session))))))
         (default (car (rassq current choices)))
         (completion-ignore-case t)
         (name (completing-read (format-prompt title default)
                                (qwen-companion-completion-table
                                 choices (qwen-companion-chat-choices--fact kind :category)
                                 (lambda (choice)
                                   (qwen-companion-chat-choices--annotation choice current)))
                                nil t nil nil default))
         (choice (or (cdr (assoc name choices))
                     (user-error "No %s chosen" (downcase title)))))
    (when (eq choice current)
      (user-error "The %s is already %s" (downcase title) name))
    choice))

(defun qwen-companion-chat-choices--confirm-model (model)
  "Return MODEL if the user agrees to the rewritten settings.
Signal a `user-error' otherwise."
  (let ((settings (pcase (qwen-companion-daemon-choices-model-writes
                          qwen-companion-chat-choices--offered)
                    ('nil nil)
                    ('project "the settings of the workspace")
                    ('user "the user's settings")
                    (_ "settings"))))
    (unless (or (not settings)
                (y-or-n-p (format "Use %s, which rewrites %s on the daemon's host? "
                                  (qwen-companion-chat-choices--name model) settings)))
      (user-error "The model is still %s"
                  (or (qwen-companion-chat-choices--current-name 'model) "the same")))
    model))

(defun qwen-companion-chat-choices--set (kind id)
  "Make the daemon use the choice of KIND with ID."
  ;; Check again: the user may have taken long to choose.
  (qwen-companion-chat-choices--check)
  (let ((title (qwen-companion-chat-choices--fact kind :title))
        (choice (cl-find id (qwen-companion-chat-choices--all kind)
                         :key #'qwen-companion-daemon-choice-id :test #'equal)))
    (qwen-companion-chat-call
     (qwen-companion-chat-choices--fact kind :method)
     (list :session qwen-companion-chat-session-id
           (qwen-companion-chat-choices--fact kind :key) id)
     (lambda (reply)
       (if-let* ((error (qwen-companion-daemon-reply-error reply)))
           (qwen-companion-backend-notice error)
         (message "%s now: %s" title
                  (if choice (qwen-companion-chat-choices--in-words choice) id)))))))

(defun qwen-companion-chat-set-model (model)
  "Use MODEL, an id, in the session of this chat, for all its clients.
Interactively, choose a model by its name, and confirm that the daemon
rewrites settings on its host.  From Lisp, do not ask."
  (interactive (list (qwen-companion-daemon-choice-id
                      (qwen-companion-chat-choices--confirm-model
                       (qwen-companion-chat-choices--read 'model))))
               qwen-companion-chat-mode)
  (qwen-companion-chat-choices--set 'model model))

(defun qwen-companion-chat-set-mode (mode)
  "Use the approval mode MODE in the session of this chat, for all its clients.
The mode decides which tools run without asking you.  MODE is the id of
one that the daemon offers; interactively, choose it by its name."
  (interactive (list (qwen-companion-daemon-choice-id (qwen-companion-chat-choices--read 'mode)))
               qwen-companion-chat-mode)
  (qwen-companion-chat-choices--set 'mode mode))

(provide 'qwen-companion-chat-choices)
;;; qwen-companion-chat-choices.el ends here
