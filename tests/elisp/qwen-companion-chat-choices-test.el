;;; qwen-companion-chat-choices-test.el --- Tests of models and modes of a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What the mode line says of the model and the approval mode, and how they
;; are chosen.

;;; Code:

(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-choices)

(defun qwen-companion-chat-choices-test--tell (&rest choices)
  "Let the Python process send the models and modes, with CHOICES first."
  (apply #'qwen-companion-chat-test-tell 'daemon-choices
         (append choices
                 '(:session "s" :model-writes user
                   :models ((:id "m1" :name "scripted" :description "the usual")
                            (:id "m2" :name "Second"))
                   :modes ((:id "default" :name "Default" :description "Require approval")
                           (:id "yolo" :name "YOLO" :description "Approve all tools"))))))

(defmacro qwen-companion-chat-choices-test-with (&rest body)
  "Run BODY in a chat with two models and two modes, the first of each in use."
  (declare (indent 0) (debug t))
  `(qwen-companion-chat-test-with
     (qwen-companion-chat-choices-test--tell)
     ,@body))

(defmacro qwen-companion-chat-choices-test-choosing (name &rest body)
  "Run BODY as if the user chose NAME of a list; return the candidates seen.
A list of the prompt and, for each that was offered, what the line says."
  (declare (indent 1) (debug t))
  `(let (seen)
     (qwen-companion-test-choosing
         (lambda (prompt table &rest more)
           (pcase-let ((`(,category . ,offered) (qwen-companion-test-candidates table)))
             (should category)
             (setq seen (cons prompt
                              (mapcar (pcase-lambda (`(,name . ,about))
                                        (substring-no-properties (concat name about)))
                                      offered)))
             (pcase ,name
               ("" (or (nth 4 more) ""))
               (name (should (assoc name offered))
                     name))))
       ,@body)
     seen))

(defmacro qwen-companion-chat-choices-test-answering (answer &rest body)
  "Run BODY as if the user gave ANSWER to each question; return the questions."
  (declare (indent 1) (debug t))
  `(let (asked)
     (qwen-companion-test-answering (lambda (question) (push question asked) ,answer)
       ,@body)
     (setq asked (nreverse asked))))

(defun qwen-companion-chat-choices-test--sent (method)
  "Return the payloads sent with METHOD, without their request ids."
  (mapcar (lambda (payload) (cddr (memq :request payload))) (qwen-companion-test-sent method)))

(defun qwen-companion-chat-choices-test--refused (command)
  "Return why COMMAND is refused; it may send nothing."
  (prog1 (cadr (should-error (call-interactively command) :type 'user-error))
    (should-not (qwen-companion-test-sent 'daemon-model))
    (should-not (qwen-companion-test-sent 'daemon-mode))))

;;; The approval mode

(ert-deftest qwen-companion-chat-choices-test-mode ()
  "It is chosen by its name and with its meaning, and nothing else is asked."
  (qwen-companion-chat-choices-test-with
    (should-not
     (qwen-companion-chat-choices-test-answering (ert-fail "asked")
       (should (equal '("Approval mode (default Default): "
                        "Default  (in use) Require approval"
                        "YOLO     Approve all tools")
                      (qwen-companion-chat-choices-test-choosing "YOLO"
                        (call-interactively (key-binding (kbd "C-c C-m"))))))))
    (should (equal '((:session "s" :mode "yolo"))
                   (qwen-companion-chat-choices-test--sent 'daemon-mode)))
    (should (equal "Approval mode now: YOLO: Approve all tools"
                   (qwen-companion-test-messages (qwen-companion-chat-test-reply 'daemon-mode))))))

(ert-deftest qwen-companion-chat-choices-test-mode-of-another-client ()
  "A change from elsewhere is in the mode line as soon as it is told."
  (qwen-companion-chat-choices-test-with
    (should (equal " idle scripted Default" (qwen-companion-chat-test-mode-line)))
    (qwen-companion-chat-test-session :state 'busy :model "Second" :mode "yolo")
    (should (equal " busy Second YOLO" (qwen-companion-chat-test-mode-line)))
    ;; What the daemon did not list has its name or its id.
    (qwen-companion-chat-test-session :state 'idle :model "other" :mode "bold")
    (should (equal " idle other bold" (qwen-companion-chat-test-mode-line)))))

;;; The model

(ert-deftest qwen-companion-chat-choices-test-model-warns-before-it-rewrites-settings ()
  (qwen-companion-chat-choices-test-with
    (should (equal '("Use Second, which rewrites the user's settings on the daemon's host? ")
                   (qwen-companion-chat-choices-test-answering
                       (not (should-not (qwen-companion-test-sent 'daemon-model)))
                     (should (equal '("Model (default scripted): "
                                      "scripted  (in use) the usual" "Second")
                                    (qwen-companion-chat-choices-test-choosing "Second"
                                      (call-interactively (key-binding (kbd "C-c M-m")))))))))
    (should (equal '((:session "s" :model "m2"))
                   (qwen-companion-chat-choices-test--sent 'daemon-model)))
    (should (equal "Model now: Second"
                   (qwen-companion-test-messages (qwen-companion-chat-test-reply 'daemon-model))))))

(ert-deftest qwen-companion-chat-choices-test-model-question-is-the-daemons ()
  "It warns of settings that the daemon will rewrite; else it asks nothing."
  (pcase-dolist (`(,writes . ,said) '((nil)
                                      (project . "the settings of the workspace on")
                                      (unknown . "rewrites settings on")
                                      (new . "rewrites settings on")))
    (qwen-companion-chat-choices-test-with
      (qwen-companion-chat-choices-test--tell :model-writes writes)
      (let ((asked (qwen-companion-chat-choices-test-answering t
                     (qwen-companion-chat-choices-test-choosing "Second"
                       (call-interactively #'qwen-companion-chat-set-model)))))
        (if said
            (should (string-match-p said (car asked)))
          (should-not asked)))
      (should (= 1 (length (qwen-companion-test-sent 'daemon-model)))))))

(ert-deftest qwen-companion-chat-choices-test-model-that-fails ()
  "The error is shown, the reason stays in the conversation, the model the same."
  (qwen-companion-chat-choices-test-with
    (qwen-companion-chat-set-model "m2")
    (qwen-companion-chat-test-turn '(:kind note :note model-failed :text "Missing credentials"))
    (should (equal "qwen-companion: The daemon did not switch the model"
                   (qwen-companion-test-messages
                     (qwen-companion-chat-test-reply
                      'daemon-model :error "The daemon did not switch the model"
                      :problem 'invalid))))
    (should (string-match-p "The model was not changed: Missing credentials"
                            (qwen-companion-chat-test-conversation)))
    (should (equal " idle scripted Default" (qwen-companion-chat-test-mode-line)))))

;;; What is refused

(ert-deftest qwen-companion-chat-choices-test-current-value-cannot-be-chosen ()
  "Choosing the current one is refused; with no default, \"\" chooses nothing."
  (qwen-companion-chat-choices-test-with
    (dolist (name '("scripted" ""))
      (qwen-companion-chat-choices-test-choosing name
        (should (equal "The model is already scripted"
                       (qwen-companion-chat-choices-test--refused
                        #'qwen-companion-chat-set-model)))))
    (qwen-companion-chat-choices-test-choosing "Default"
      (should (equal "The approval mode is already Default"
                     (qwen-companion-chat-choices-test--refused #'qwen-companion-chat-set-mode))))
    (qwen-companion-chat-test-session :state 'idle)
    (qwen-companion-chat-choices-test-choosing ""
      (should (equal "No model chosen"
                     (qwen-companion-chat-choices-test--refused
                      #'qwen-companion-chat-set-model))))))

(ert-deftest qwen-companion-chat-choices-test-states-without-a-choice ()
  "It is said why, before anything is asked."
  (pcase-dolist (`(,state . ,said)
                 '(((:state closed) . "Left; C-c C-l loads")
                   ((:state dead :text "it crashed") . "Ended; C-c C-l loads")
                   ((:state disconnected :text "no route") . "Disconnected: no route")))
    (qwen-companion-chat-choices-test-with
      (apply #'qwen-companion-chat-test-tell 'daemon-session :session "s" state)
      (dolist (command '(qwen-companion-chat-set-model qwen-companion-chat-set-mode))
        (should (string-prefix-p said (qwen-companion-chat-choices-test--refused command))))))
  (qwen-companion-chat-choices-test-with
    (qwen-companion-daemon-stop)
    (should (string-prefix-p "Disconnected from the daemon"
                             (qwen-companion-chat-choices-test--refused
                              #'qwen-companion-chat-set-mode))))
  (qwen-companion-chat-test-with
    (should (equal "No model available yet; the session is idle"
                   (qwen-companion-chat-choices-test--refused #'qwen-companion-chat-set-model)))
    (qwen-companion-chat t)
    (should (equal "No session yet"
                   (qwen-companion-chat-choices-test--refused #'qwen-companion-chat-set-model))))
  (with-temp-buffer
    (should (equal "Not in a chat buffer"
                   (cadr (should-error (call-interactively #'qwen-companion-chat-set-mode)
                                       :type 'user-error))))))

(ert-deftest qwen-companion-chat-choices-test-not-after-no-or-the-loss-of-the-session ()
  (pcase-dolist (`(,answer . ,said)
                 (list (cons #'ignore "\\`The model is still scripted\\'")
                       (cons (lambda () (qwen-companion-chat-test-session :state 'dead) t) "\\`Ended")))
    (qwen-companion-chat-choices-test-with
      (qwen-companion-chat-choices-test-answering (funcall answer)
        (qwen-companion-chat-choices-test-choosing "Second"
          (should (string-match-p said (qwen-companion-chat-choices-test--refused #'qwen-companion-chat-set-model))))))))

;;; Names

(ert-deftest qwen-companion-chat-choices-test-names-are-harmless ()
  "Hidden characters in a name or description are visible, on one line."
  (qwen-companion-chat-choices-test-with
    (qwen-companion-chat-choices-test--tell
     :modes '((:id "a" :name "All\u202e\nthe\u200b" :description "of\n\u2066them")))
    (should (equal '("Approval mode: " "All\\u202E the\\u200B  of \\u2066them")
                   (qwen-companion-chat-choices-test-choosing "All\\u202E the\\u200B"
                     (call-interactively #'qwen-companion-chat-set-mode))))
    (should (equal '((:session "s" :mode "a"))
                   (qwen-companion-chat-choices-test--sent 'daemon-mode)))
    (qwen-companion-chat-test-session :state 'idle :model "M\u202e" :mode "a")
    (should (equal " idle M\\u202E All\\u202E the\\u200B" (qwen-companion-chat-test-mode-line)))))

(ert-deftest qwen-companion-chat-choices-test-two-of-one-name ()
  "Either can be chosen, though it cannot be told which is in use."
  (qwen-companion-chat-choices-test-with
    (qwen-companion-chat-choices-test--tell
     :models '((:id "m1" :name "scripted") (:id "m2" :name "scripted")
               (:id "m3" :name "scripted <2>") (:id "m4" :name "scripted")))
    (qwen-companion-chat-choices-test-answering t
      (pcase-dolist (`(,name ,id) '(("scripted" "m1") ("scripted <2>" "m2")
                                    ("scripted <2> <2>" "m3") ("scripted <3>" "m4")))
        (qwen-companion-chat-choices-test-choosing name
          (call-interactively #'qwen-companion-chat-set-model))
        (should (equal (list :session "s" :model id)
                       (car (last (qwen-companion-chat-choices-test--sent 'daemon-model)))))))))

;;; The mode line

(defun qwen-companion-chat-choices-test--at (name property)
  "Return PROPERTY of the mode line where NAME is in it."
  (get-text-property (string-match (regexp-quote name) (qwen-companion-chat-test-mode-line))
                     property (qwen-companion-chat-test-mode-line)))

(ert-deftest qwen-companion-chat-choices-test-help-of-the-mode-line ()
  "It explains the mode and the click, and shows a backslash as it is.
Long names are cut in the mode line, and whole in the help."
  (qwen-companion-chat-choices-test-with
    (let ((name (concat "provider/" (make-string 100 ?x))))
      (qwen-companion-chat-test-session :state 'waiting :model name :mode "yolo")
      (should (string-suffix-p " YOLO" (qwen-companion-chat-test-mode-line)))
      (should (< (length (qwen-companion-chat-test-mode-line)) 50))
      (should (string-match-p name (qwen-companion-chat-choices-test--at "provider" 'help-echo))))
    (qwen-companion-chat-test-session :state 'idle :model "scripted" :mode "default")
    (should (equal "Approval mode Default: Require approval\nmouse-1: choose another"
                   (qwen-companion-chat-choices-test--at "Default" 'help-echo)))
    (qwen-companion-chat-test-session :state 'idle :model "C:\\[kill-emacs]")
    (should (equal "Model C:\\[kill-emacs]\nmouse-1: choose another"
                   (substitute-command-keys
                    (qwen-companion-chat-choices-test--at "C:" 'help-echo))))))

(ert-deftest qwen-companion-chat-choices-test-a-click-is-about-its-window ()
  (qwen-companion-chat-choices-test-with
    (let ((window (selected-window)))
      (select-window (split-window))
      (switch-to-buffer "*scratch*")
      (qwen-companion-chat-choices-test-choosing "YOLO"
        (funcall (lookup-key (with-current-buffer (window-buffer window)
                               (qwen-companion-chat-choices-test--at "Default" 'local-map))
                             [mode-line mouse-1])
                 `(mouse-1 (,window mode-line (0 . 0) 0))))
      (should (eq window (selected-window))))
    (should (equal '((:session "s" :mode "yolo"))
                   (qwen-companion-chat-choices-test--sent 'daemon-mode)))))

(provide 'qwen-companion-chat-choices-test)
;;; qwen-companion-chat-choices-test.el ends here
